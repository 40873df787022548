-- needs: states groups
-- {queues, lane, narrowing}: {members of all its messages there, keys of sets that are too large for one answer}. `narrowing`,
-- which may be missing, is {parked, group, low, high}: see message.Narrowing.
-- Of members in a range of times, only those after ARGV[3].
local INLINE, LOOKED = 2000, 20000
local queues, lane, narrowing = unpack(asked, 1, 3)
local parked, group, low, high = unpack(lane == READY and type(narrowing) == 'table' and narrowing or {}, 1, 4)
local function given(value) return value ~= nil and value ~= cjson.null end
local members, large = {}, {}
local function take(key, by_time)
  local ranged = by_time and given(low)
  local n = ranged and call('ZCOUNT', key, low, high) or not ranged and call('ZCARD', key)
  if n > (ranged and LOOKED or INLINE) or #members > (ranged and LOOKED or 4 * INLINE) then
    large[#large + 1] = n > 0 and key or nil
  elseif n > 0 then
    local found = ranged and call('ZRANGEBYSCORE', key, low, high) or call('ZRANGE', key, 0, -1)
    for _, member in ipairs(members_of(found)) do
      if not ranged or comes_before(ARGV[3], member) then members[#members + 1] = member end
    end
  end
end
for _, queue in ipairs(queues) do
  if parked ~= true then
    for priority = 0, 3 do take(lane == LEASED and lease_key(priority, queue) or due_key(priority, queue), true) end
    if lane == READY then take(wait_key(queue), true) end
  end
  if lane == READY and parked ~= false then
    local names = given(group) and {group} or call('SMEMBERS', names_key(queue))
    for _, name in ipairs(names) do take(parked_key(queue, name)) end
  end
end
return {members, large}
