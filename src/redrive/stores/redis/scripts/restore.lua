-- needs: states faults cells groups puts settles
-- Messages that come to rest as they are: {{message, …}, swaps}, their ids in ARGV[3]: {{1 per message that was written, 0
-- where its id is stored, or another message holds its key}}, or the swap that does not apply, and then nothing was
-- written.
-- A message by the names of what was asked: `tail`, `progress` and `fault`, the first of so many `faults`, are indexes into
-- ARGV.
local function message_of(row)
  return {queue = row[1], task = row[2], priority = row[3], lane = row[4], enqueued = row[5], tail = row[6],
    fence = row[7], attempt = row[8], crashes = row[9], alone = row[10], redrives = row[11], life = row[12],
    held = row[13], suspect = row[14], worker = row[15], key = row[16], group = row[17], reason = row[18],
    rested = row[19], attempts_allowed = row[20], fingerprint = row[21], fault = row[22], faults = row[23],
    progress = row[24], batch = row[25]}
end

local rows, swaps = unpack(asked, 1, 2)
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end
local words, new, stored, messages, wanted = {}, {}, {}, {}, {}
for i, row in ipairs(rows) do
  messages[i], wanted[i] = message_of(row), sub(ARGV[3], 16 * i - 15, 16 * i)
end
for i, message in ipairs(each('HMGET', MESSAGES, wanted)) do stored[wanted[i]] = message or nil end
for i, one in ipairs(messages) do
  local id, key = wanted[i], one.key
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
  local id, one = wanted[i], messages[i]
  local key, group, faults = one.key, one.group, one.faults
  local marks = one.priority + (key and 4 * KEY or 0) + (group and 4 * GROUP or 0) + OWN
  local head = struct.pack('>BBI8BI8B', 0x98, 0xcf, number + n, 0xcf, one.enqueued, marks)
  keep_field(MESSAGES, id, head .. '\0' .. ARGV[one.tail])
  local flags = (key and KEY or 0) + (group and GROUP or 0) + (faults > 0 and HAS_FAULTS or 0)
    + (one.progress and HAS_PROGRESS or 0) + (one.suspect and SUSPECT or 0)
  local cold = {n = number + n, g = group, pr = group and one.priority or nil, aa = one.attempts_allowed}
  local state = {lane = one.lane, fence = one.fence, flags = flags, attempt = one.attempt, crashes = one.crashes,
    alone = one.alone, redrives = one.redrives, faults = faults, due = 0, life = one.life, held = one.held,
    worker = one.worker, cold = cold}
  local record = {id = id, member = sub(head, 5, 10) .. id, queue = one.queue, task = one.task, state = state,
    batch = one.batch}
  rest(record, one.lane, one.reason, one.fingerprint, one.rested)
  for slot = 0, faults - 1 do keep_field(FAULTS, id .. string.char(slot), ARGV[one.fault + slot]) end
  if one.progress then keep_field(PROGRESS, id, ARGV[one.progress]) end
  keep_state(id, state)
  call('SADD', root .. 'qs', one.queue)
end
flush()
batches:write()
return {words}
