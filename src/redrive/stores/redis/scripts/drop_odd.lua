-- needs: full states groups
-- {queues}, then by fours of ARGV key, queue and group of whose place it is, or '', and member: take these out of their
-- sets, let in who waits for a free place in these queues, and count anew who is parked there.
for i = 3, #ARGV, 4 do
  local key, queue, group, member = root .. ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  call(({zset = 'ZREM', set = 'SREM', hash = 'HDEL'})[call('TYPE', key).ok], key, member)
  if group ~= '' then touch(queue, group) end
end
for _, queue in ipairs(asked[1]) do
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do touch(queue, group) end
end
admit()
for _, queue in ipairs(asked[1]) do
  if call('HEXISTS', root .. 'pn', queue) == 1 then call('HSET', root .. 'pn', queue, parked_in(queue)) end
  wake_waiters(queue)
end
return 1
