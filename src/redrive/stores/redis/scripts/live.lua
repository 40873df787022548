-- needs: states groups
-- {queues, lane}: {members of all its messages there, keys of sets that are too large for one answer}.
local INLINE = 2000
local queues, lane = unpack(asked)
local members, large = {}, {}
local function take(key)
  local n = call('ZCARD', key)
  if n > INLINE or #members > 4 * INLINE then
    large[#large + 1] = n > 0 and key or nil
  elseif n > 0 then
    for _, member in ipairs(members_of(call('ZRANGE', key, 0, -1))) do members[#members + 1] = member end
  end
end
for _, queue in ipairs(queues) do
  for priority = 0, 3 do take(lane == LEASED and lease_key(priority, queue) or due_key(priority, queue)) end
  if lane == READY then
    take(wait_key(queue))
    for _, group in ipairs(call('SMEMBERS', names_key(queue))) do take(parked_key(queue, group)) end
  end
end
return {members, large}
