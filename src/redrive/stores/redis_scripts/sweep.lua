-- needs: states faults groups puts settles
-- Forget done messages that were kept long enough, and keys whose time is over and whose message is gone; at most a
-- thousand of each, and fewer long ones. How many there were of what there were more; a thousand if there are others.
local SWEEP_MAX, SWEEP_BYTES = 1000, 16 * 1024 * 1024
local members = call('ZRANGEBYSCORE', EXPIRIES, '-inf', '(' .. now, 'LIMIT', 0, SWEEP_MAX)
local bytes, more = 0, #members
for _, member in ipairs(members) do
  if bytes >= SWEEP_BYTES then
    more = SWEEP_MAX
    break
  end
  local id = sub(member, 7)
  local message, packed = call('HGET', MESSAGES, id), call('HGET', STATES, id)
  bytes = bytes + #message
  remove(record_of(id, message, packed), packed, message)
end
flush()
admit()
local names = call('ZRANGEBYSCORE', KEYS_UNTIL, '-inf', now, 'LIMIT', 0, SWEEP_MAX)
for _, name in ipairs(names) do
  local held = call('HGET', KEYS_OF, name)
  local id = held and sub(held, 1, 16)
  local message = id and call('HGET', MESSAGES, id)
  local of = message and read_message(message)
  call('ZREM', KEYS_UNTIL, name)
  if of and of.rare.k and key_name(of.task, of.rare.k) == name then
    call('HSET', KEYS_OF, name, id .. struct.pack('>I8', 0)) -- held for its message's life alone from now on
  else
    call('HDEL', KEYS_OF, name)
  end
end
return math.max(more, #names)
