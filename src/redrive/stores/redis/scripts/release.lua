-- needs: full states faults
-- {worker, priority, queue, cursor, known, fault of what lapses, by its ARGV index, or nil}, in ARGV[3] id and fence of
-- each that was started: one page of the leases,
-- {cursor that leads on, released, lapsed}. What lapses has no worker from then on: a second release must not take it for
-- claimed and never started. Both go before what was enqueued after them.
local worker, priority, queue, cursor, known, fault = unpack(asked, 1, 6)
local started = {}
for i = 1, #ARGV[3] / 20 do started[sub(ARGV[3], 20 * i - 19, 20 * i)] = true end
local leases, released, lapsed = lease_key(priority, queue), 0, 0
local page = call('ZSCAN', leases, cursor, 'COUNT', 1000)
local members, ids, damaged = {}, {}, {}
for i = 1, #page[2], 2 do
  members[#members + 1] = page[2][i]
  ids[#ids + 1] = sub(page[2][i], 7)
end
for i, packed in ipairs(each('HMGET', STATES, ids)) do
  local state, why = state_of(packed)
  if not state then
    damaged[#damaged + 1] = {members[i], why}
  elseif state.worker == worker and state.lane == LEASED then
    local id, member = ids[i], members[i]
    local message = call('HGET', MESSAGES, id) or ''
    local life = state.life > 0 and state.life or #message >= 19 and enqueued_of(message) or now
    state.due = math.min(now, life)
    if known and not started[id .. sub(packed, 2, 5)] then
      state.lane, state.attempt = READY, state.attempt - 1
      unmark(state, ALONE)
      drop(leases, member)
      enter_due(priority, queue, state, member)
      released = released + 1
    else
      state.worker = ''
      if fault then remember_fault(id, state, ARGV[fault]) end
      add(leases, state.due, member)
      lapsed = lapsed + 1
    end
    keep_state(id, state)
  end
end
flush()
for _, one in ipairs(damaged) do set_aside(one[1], queue, priority, one[2]) end
if released + lapsed > 0 then wake_waiters(queue) end
return {page[1], released, lapsed}
