-- needs: states groups
-- {queues}: per queue {ready, scheduled, leased, dead, quarantine, done, age of the oldest in ms, parked}.
local counted = {}
for i, queue in ipairs(asked[1]) do
  local ready, waiting, leased, oldest = 0, 0, 0, now
  for priority = 0, 3 do
    local key = due_key(priority, queue)
    local every = call('ZCARD', key)
    local due = every > 0 and call('ZCOUNT', key, '-inf', now) or 0
    if due > 0 then oldest = math.min(oldest, tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])) end
    ready, waiting = ready + due, waiting + every - due
    leased = leased + call('ZCARD', lease_key(priority, queue))
  end
  local waits = wait_key(queue)
  local every = call('ZCARD', waits)
  local woken = every > 0 and call('ZCOUNT', waits, '-inf', now) or 0
  if woken > 0 then oldest = math.min(oldest, tonumber(call('ZRANGE', waits, 0, 0, 'WITHSCORES')[2])) end
  ready, waiting = ready + woken, waiting + every - woken
  local parked = math.max(0, tonumber(call('HGET', root .. 'pn', queue) or 0) or 0)
  counted[i] = {ready, waiting, leased, call('ZCARD', rest_key(DEAD, queue)), call('ZCARD', rest_key(QUARANTINE, queue)),
    call('ZCARD', rest_key(DONE, queue)), now - oldest, parked}
end
return counted
