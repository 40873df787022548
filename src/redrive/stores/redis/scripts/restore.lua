-- needs: states faults cells groups puts settles
-- Messages that come to rest as they are: {{message, …}, swaps}, their ids in ARGV[3]: {{1 per message that was written, 0
-- where its id is stored, or another message holds its key}}, or the swap that does not apply, and then nothing was
-- written. A message: {queue, task, priority, lane, enqueued, ARGV index of its
-- tail, fence, attempt, crashes, crashes alone, redrives, life, held, suspect, worker, key or nil, group or nil, reason or
-- nil, rested or nil, attempts allowed or nil, fingerprint or nil, ARGV index of its first fault, how many, ARGV index of a
-- checkpoint or nil}.
local conflict = swap_all(asked[2])
if conflict then return {'conflict', conflict} end
asked = asked[1]
local words, new = {}, {}
local stored, wanted = {}, {}
for i = 1, #asked do wanted[i] = sub(ARGV[3], 16 * i - 15, 16 * i) end
for i, message in ipairs(each('HMGET', MESSAGES, wanted)) do stored[wanted[i]] = message or nil end
for i, one in ipairs(asked) do
  local id, key = wanted[i], one[16]
  local held = key and holder(key)
  words[i] = 0
  if not stored[id] and (not held or held == id) then
    words[i], stored[id] = 1, true
    new[#new + 1] = i
    if key and not held then hold_key(key, id, 0) end
  end
end
write_cells()
if #new == 0 then return {words} end
spread(MESSAGES)
spread(STATES)
local number = next_numbers(#new) - 1
for n, i in ipairs(new) do
  local id, one = wanted[i], asked[i]
  local key, group, faults = one[16], one[17], one[23]
  local marks = one[3] + (key and 4 * KEY or 0) + (group and 4 * GROUP or 0) + OWN
  local head = struct.pack('>BBI8BI8B', 0x98, 0xcf, number + n, 0xcf, one[5], marks)
  keep_field(MESSAGES, id, head .. '\0' .. ARGV[one[6]])
  local flags = (key and KEY or 0) + (group and GROUP or 0) + (faults > 0 and HAS_FAULTS or 0)
    + (one[24] and HAS_PROGRESS or 0) + (one[14] and SUSPECT or 0)
  local cold = {n = number + n, g = group, pr = group and one[3] or nil, aa = one[20]}
  local state = {lane = one[4], fence = one[7], flags = flags, attempt = one[8], crashes = one[9], alone = one[10],
    redrives = one[11], faults = faults, due = 0, life = one[12], held = one[13], worker = one[15], cold = cold}
  rest({id = id, member = sub(head, 5, 10) .. id, queue = one[1], task = one[2], state = state}, one[4], one[18], one[21],
    one[19])
  for slot = 0, faults - 1 do keep_field(FAULTS, id .. string.char(slot), ARGV[one[22] + slot]) end
  if one[24] then keep_field(PROGRESS, id, ARGV[one[24]]) end
  keep_state(id, state)
  call('SADD', root .. 'qs', one[1])
end
flush()
return {words}
