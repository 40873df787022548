-- needs: full states faults groups puts settles
-- {handles as {redrives, lane}, verdict}, their ids in ARGV[3]: 1 per handle that was as it says, else 0.
-- A verdict: {'redrive', to_queue, delay, attempts, run, keep_deadline} | {'discard'} | {'isolate', why}.
local handles, verdict, words = asked[1], asked[2], {}

local function redrive(record)
  local state, cold, group = record.state, record.state.cold, record.group
  local to = verdict[2] or record.queue
  local head = group and cold.t == PLACE and to == record.queue
  rise(record)
  if group and not head then leave(record) end
  state.lane, state.redrives, state.attempt, state.crashes, state.alone = READY, state.redrives + 1, 0, 0, 0
  unmark(state, SUSPECT)
  unmark(state, ALONE)
  state.due = verdict[3] > 0 and math.min(now + verdict[3] + 1, TIME_MAX) or now
  state.life, state.held = now, 0
  cold.aa, cold.run, cold.df = verdict[4], verdict[5], nil
  if not verdict[6] then cold.dl = 1 end
  cold.q = to ~= record.task_queue and to or nil
  record.queue = to
  if group and not head then
    join(record, next_numbers(1), state.due)
  else
    add(due_key(record.priority, to), state.due, record.member)
  end
  keep_state(record.id, state)
  call('SADD', root .. 'qs', to)
end

local woken = {}
for i, handle in ipairs(handles) do
  local id = sub(ARGV[3], 16 * i - 15, 16 * i)
  local message = call('HGET', MESSAGES, id)
  local packed = message and call('HGET', STATES, id)
  words[i] = 0
  if packed then
    local record = record_of(id, message, packed)
    local state = record.state
    record.task_queue = read_message(message).queue
    if (state.lane == DEAD or state.lane == QUARANTINE) and state.lane == handle[2] and state.redrives == handle[1] then
      words[i] = 1
      woken[record.queue] = true
      if verdict[1] == 'redrive' then
        redrive(record)
        woken[record.queue] = true
      elseif verdict[1] == 'discard' then
        remove(record, packed, message)
      else
        local fingerprint = state.cold.fp
        rise(record)
        rest(record, QUARANTINE, verdict[2], fingerprint)
        keep_state(id, state)
      end
      flush()
    end
  end
end
admit()
for queue in pairs(woken) do wake_waiters(queue) end
return words
