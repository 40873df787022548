-- needs: faults
-- The ids in ARGV[3]: {now, messages, states, faults, progress, results}, in their order; false where there is none. When
-- what it has is long enough it stops: the lists may be shorter than what was asked.
local FIND_BYTES, FIND_CHUNK = 4 * 1024 * 1024, 50
local total, bytes, at = #ARGV[3] / 16, 0, 0
local messages, states, faults, progress, results = {}, {}, {}, {}, {}
local function beside(hash, ids, into)
  for i, value in ipairs(call('HMGET', hash, unpack(ids))) do
    into[at + i] = value
    bytes = bytes + (value and #value or 0)
  end
end
while at < total and bytes < FIND_BYTES do
  local ids = {}
  for i = 1, math.min(FIND_CHUNK, total - at) do ids[i] = sub(ARGV[3], 16 * (at + i) - 15, 16 * (at + i)) end
  beside(MESSAGES, ids, messages)
  beside(STATES, ids, states)
  beside(PROGRESS, ids, progress)
  beside(RESULTS, ids, results)
  for i, id in ipairs(ids) do faults[at + i] = faults_of(id, states[at + i]) end
  at = at + #ids
end
return {now, messages, states, faults, progress, results}
