-- needs: full states faults cells groups puts settles
-- The ids in ARGV[3], and swaps: per id 0 unknown, 1 cancelled, 2 asked to stop, 3 too late; or the swap that does not
-- apply, and then nothing was changed.
local conflict = swap_all(asked)
if conflict then return {'conflict', conflict} end
local words, woken = {}, {}
for i = 1, #ARGV[3] / 16 do
  local id = sub(ARGV[3], 16 * i - 15, 16 * i)
  local message = call('HGET', MESSAGES, id)
  local record = message and sound_of(id, message, call('HGET', STATES, id))
  if not record then
    words[i] = message and 3 or 0
  elseif record.state.lane == READY then
    leave_due(record.priority, record.queue, record.member)
    drop(lease_key(record.priority, record.queue), record.member) -- its state may be gone
    if record.group then leave(record) end
    cancelled(record)
    keep_state(id, record.state)
    woken[record.queue] = true
    words[i] = 1
  elseif record.state.lane == LEASED then
    mark(record.state, CANCEL)
    keep_state(id, record.state)
    words[i] = 2
  else
    words[i] = 3
  end
end
write_cells()
flush()
admit()
batches:write()
for queue in pairs(woken) do wake_waiters(queue) end
return words
