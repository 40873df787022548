-- needs: states groups
-- {queue, names}: per group {width, taken, parked, id of the last dead message that holds a place, or ''}.
local rows = {}
for i, group in ipairs(asked[2]) do
  local places, blocked = places_key(asked[1], group), ''
  if rules(asked[1]).block then
    for _, member in ipairs(call('SMEMBERS', places)) do
      local id = sub(member, 7)
      local lane = sub(call('HGET', STATES, id) or '', 1, 1)
      if (lane == DEAD or lane == QUARANTINE) and comes_before(blocked, id) then blocked = id end
    end
  end
  rows[i] = {width_of(asked[1], group), call('SCARD', places), call('ZCARD', parked_key(asked[1], group)), blocked}
end
return rows
