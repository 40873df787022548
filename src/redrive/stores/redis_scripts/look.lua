-- needs: states groups
-- {asks}, each {queue, tasks to skip}: in how many ms one of them may find something, or nothing.
local LOOKED_MAX = 20000

local function first_in(key, skip)
  if not skip then return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) end
  for offset = 0, LOOKED_MAX, 500 do
    local rows, ids = call('ZRANGE', key, offset, offset + 499, 'WITHSCORES'), {}
    for i = 1, #rows, 2 do ids[#ids + 1] = sub(rows[i], 7) end
    for i, message in ipairs(each('HMGET', MESSAGES, ids)) do
      if not skip[task_of(message)] then return tonumber(rows[2 * i]) end
    end
    if #ids < 500 then return end
  end
end

local soonest
local function sooner(at_ms)
  if at_ms and (not soonest or at_ms < soonest) then soonest = at_ms end
end
for _, ask in ipairs(asked[1]) do
  local queue = ask[1]
  if not rules(queue).paused then
    for priority = 0, 3 do
      sooner(first_in(due_key(priority, queue), ask[2]))
      sooner(first_in(lease_key(priority, queue), ask[2]))
    end
    sooner(first_in(wait_key(queue)))
  end
end
return soonest and soonest - now
