-- needs: faults
-- The ids in ARGV[3]: {now, messages, states, faults, progress, results}, in their order; false where there is none.
local ids = {}
for i = 1, #ARGV[3] / 16 do ids[i] = sub(ARGV[3], 16 * i - 15, 16 * i) end
local states, faults = each('HMGET', STATES, ids), {}
for i, id in ipairs(ids) do faults[i] = faults_of(id, states[i]) end
return {now, each('HMGET', MESSAGES, ids), states, faults,
  each('HMGET', PROGRESS, ids), each('HMGET', RESULTS, ids)}
