-- needs: states groups
-- {queue, names}: per group {width, taken, parked, id of the last dead message that holds a place, or ''}.
local queue, groups = unpack(asked)
local rows = {}
for i, group in ipairs(groups) do
  local places, blocked = places_key(queue, group), ''
  if rules(queue).block then
    for _, member in ipairs(call('SMEMBERS', places)) do
      local id = sub(member, 7)
      local lane = sub(call('HGET', STATES, id) or '', 1, 1)
      if (lane == DEAD or lane == QUARANTINE) and comes_before(blocked, id) then blocked = id end
    end
  end
  rows[i] = {width_of(queue, group), call('SCARD', places), call('ZCARD', parked_key(queue, group)), blocked}
end
return rows
