-- needs: states
-- {queue, bounds}: how many come due between them, how many of these have failed before, and 1 where all of these are
-- counted. Of those that wait outside their groups only so many are looked at one by one; of the others it is not known
-- whether they have failed.
local LOOKED = 20000
local queue, bounds = unpack(asked)
local counts, looked = {}, 0

for i = 1, #bounds - 1 do
  local low, high = '(' .. text_of(bounds[i]), text_of(bounds[i + 1])
  local every, retries, seen = 0, 0, 0
  for priority = 0, 3 do
    every = every + call('ZCOUNT', due_key(priority, queue), low, high)
    retries = retries + call('ZCOUNT', retry_key(priority, queue), low, high)
  end
  local waiting = call('ZCOUNT', wait_key(queue), low, high)
  if waiting > 0 and looked < LOOKED then
    local members = call('ZRANGEBYSCORE', wait_key(queue), low, high, 'LIMIT', 0, LOOKED - looked)
    looked, seen = looked + #members, #members
    for first = 1, #members, 500 do
      local ids = {}
      for n = first, math.min(first + 499, #members) do ids[#ids + 1] = sub(members[n], 7) end
      for _, state in ipairs(call('HMGET', STATES, unpack(ids))) do
        if state and #state >= 10 and (struct.unpack('>I4', state, 7)) > 0 then retries = retries + 1 end
      end
    end
  end
  counts[i] = {every + waiting, retries, seen == waiting and 1 or 0}
end
return counts
