-- needs: states groups
-- {queues}: {messages stored, messages that stand somewhere, {queue, group, …} in which a message is parked though a
-- place is free}.
local stand, stuck = 0, {}
for _, queue in ipairs(asked[1]) do
  for priority = 0, 3 do
    stand = stand + call('ZCARD', due_key(priority, queue)) + call('ZCARD', lease_key(priority, queue))
  end
  for _, lane in ipairs({DEAD, QUARANTINE, DONE}) do stand = stand + call('ZCARD', rest_key(lane, queue)) end
  stand = stand + call('ZCARD', wait_key(queue))
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do
    local parked = call('ZCARD', parked_key(queue, group))
    stand = stand + parked
    if parked > 0 and call('SCARD', places_key(queue, group)) < width_of(queue, group)
      and call('SISMEMBER', unfinished, queue .. '\0' .. group) == 0 then
      stuck[#stuck + 1] = queue
      stuck[#stuck + 1] = group
    end
  end
end
return {call('HLEN', MESSAGES) - call('HEXISTS', MESSAGES, ''), stand, stuck}
