-- The ids in ARGV[3]: {now, messages, states, faults, progress, results}, in their order; false where there is none.
local ids = {}
for i = 1, #ARGV[3] / 16 do ids[i] = sub(ARGV[3], 16 * i - 15, 16 * i) end
return {now, each('HMGET', MESSAGES, ids), each('HMGET', STATES, ids), each('HMGET', FAULTS, ids),
  each('HMGET', PROGRESS, ids), each('HMGET', RESULTS, ids)}
