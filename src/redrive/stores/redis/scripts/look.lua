-- needs: states groups looks
-- {asks}, each {queue, tasks to skip}: in how many ms one of them may find something, or nothing. Where an ask skips
-- tasks, the first that is not looked at counts as one that it wants.
local soonest
local function sooner(at_ms)
  if at_ms and (not soonest or at_ms < soonest) then soonest = at_ms end
end

local function first_in(key) sooner(tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])) end

for _, ask in ipairs(asked[1]) do
  local queue, skip = unpack(ask, 1, 2)
  if not rules(queue).paused then
    for priority = 0, 3 do
      local due, leases = due_key(priority, queue), lease_key(priority, queue)
      if skip then
        local first, beyond = first_of(due, leases, '+inf', skip, 1, SKIP_PAGE)
        sooner(first[1] and first[1][1] or beyond)
      else
        first_in(due)
        first_in(leases)
      end
    end
    first_in(wait_key(queue))
  end
end
return soonest and soonest - now
