-- needs: full states faults cells groups puts settles
-- {handles as {redrives, lane, delay or due time, fence or nil, due time as it was seen or nil, {queue, priority, deadline} as they were seen, each
-- or all nil, and what an edit makes of {queue, priority, deadline, due time}, nil where it stays; a deadline 0 is none}, verdict, swaps}, their ids in ARGV[3]: {a word per handle: 1 if it was as it says,
-- else 0}, or what was refused, and then nothing was changed. A verdict: {'redrive', to_queue, attempts, run,
-- keep_deadline} | {'discard', waive} | {'hasten', run or nil} | {'postpone', run, back} | {'edit', run, back, cancel} | {'isolate', why} | {'return', run} | {'readmit'} | {'replace', drafts, zones, ARGV index
-- of their ids}.
-- What a run or an isolation takes from a message is the map `b` in its state, with the names of there; `n` is how often
-- it had been redriven, by which what a run took is told from what an isolation took.
local handles, verdict, swaps = unpack(asked, 1, 3)
local kind, words, woken = verdict[1], {}, {}

-- The error of the last fault, if that is what it died of.
local function error_of(record)
  local state, cold = record.state, record.state.cold
  if not cold.fp then return end
  if cold.er then return cold.er end
  local fields = fault_fields(record.id, state.faults)
  local fault = call('HGET', FAULTS, fields[#fields] or '')
  local whole, read = pcall(cjson.decode, fault or '{}')
  return cold.fp .. '\0' .. (whole and type(read) == 'table' and read.error or '')
end

local function before(record)
  local state, cold = record.state, record.state.cold
  local earlier = {n = state.redrives, l = state.lane, q = record.queue, r = cold.r, rm = cold.rm, a = state.attempt,
    c = state.crashes, ca = state.alone, s = has(state, SUSPECT), lf = state.life, h = state.held, dl = cold.dl,
    aa = cold.aa, fp = cold.fp, er = error_of(record), run = cold.run, bl = cold.t == PLACE, ex = cold.ex}
  if state.lane == DONE then
    local progress, result = laid_aside(record.id)
    local had = call('HGET', PROGRESS, record.id) -- its flag may be that of what an earlier run laid aside
    earlier.p, earlier.res = had and true or false, cold.res
    for field, value in pairs({[progress] = had, [result] = call('HGET', RESULTS, record.id)}) do
      if value then
        keep_field(PROGRESS, field, value)
        mark(state, HAS_PROGRESS)
      end
    end
  end
  return earlier
end

local function redrive(record, delay)
  local state, cold, group = record.state, record.state.cold, record.group
  local _, to_queue, attempts, run, keep_deadline = unpack(verdict, 1, 5)
  local to = to_queue or record.queue
  local head = group and cold.t == PLACE and to == record.queue
  if cold.b then drop_laid_aside(record.id) end
  cold.b = run and before(record) or nil
  if state.lane == DONE then
    drop_field(RESULTS, record.id)
    drop_field(PROGRESS, record.id)
    cold.res = nil
    if not cold.b then unmark(state, HAS_PROGRESS) end
    if record.batch then cold.lb = 1 end -- it is counted as done, and has left its batch
  else
    batches:count(record.batch, record.counted, 'open')
  end
  rise(record)
  if group and not head then leave(record) end
  state.lane, state.redrives, state.attempt, state.crashes, state.alone = READY, state.redrives + 1, 0, 0, 0
  unmark(state, SUSPECT)
  unmark(state, ALONE)
  unmark(state, CANCEL)
  state.due = delay > 0 and math.min(now + delay + 1, TIME_MAX) or now
  state.life, state.held = now, 0
  cold.aa, cold.run, cold.df = attempts, run, nil
  if not keep_deadline then cold.dl = 1 end
  cold.q = to ~= record.task_queue and to or nil
  record.queue = to
  if group and not head then
    join(record, next_numbers(1), state.due)
  else
    enter_due(record.priority, to, state, record.member)
  end
  keep_state(record.id, state)
  call('SADD', root .. 'qs', to)
  woken[to] = true
end

-- Ready, and not run since this run moved it.
local function is_returned(record)
  local state, b = record.state, record.state.cold.b
  if not b or b.n ~= state.redrives - 1 then return false end
  for _, name in ipairs({'a', 'c', 'ca', 'lf', 'h', 'rm'}) do
    if type(b[name]) ~= 'number' then return false end
  end
  if type(b.q) ~= 'string' or not ({D = true, Q = true, K = true})[b.l] then return false end
  return state.cold.run == verdict[2] and state.attempt == 0 and state.crashes == 0
end

-- It rests just as it did. It leaves its group, unless it is still the head that blocks it.
local function give_back(record)
  local state, cold = record.state, record.state.cold
  local b = cold.b
  if not record.group or cold.t == PLACE then leave_due(record.priority, record.queue, record.member) end
  local head = b.bl and cold.t == PLACE and b.q == record.queue and rules(b.q).block
  if record.group and not head then leave(record) end
  state.redrives, state.attempt, state.crashes, state.alone, state.life, state.held = b.n, b.a, b.c, b.ca, b.lf, b.h
  if b.s then mark(state, SUSPECT) else unmark(state, SUSPECT) end
  cold.aa, cold.run, cold.dl, cold.b = b.aa, b.run, b.dl, nil
  cold.q = b.q ~= record.task_queue and b.q or nil
  record.queue = b.q
  if b.l == DONE then
    local progress, result = laid_aside(record.id)
    cold.res = b.res
    if b.res then keep_field(RESULTS, record.id, call('HGET', PROGRESS, result)) end
    if b.p then
      keep_field(PROGRESS, record.id, call('HGET', PROGRESS, progress))
    else
      unmark(state, HAS_PROGRESS)
      drop_field(PROGRESS, record.id)
    end
    drop_laid_aside(record.id)
  end
  rest(record, b.l, b.r, b.fp, b.rm)
  cold.er = b.er
  if b.ex then expire(record, b.ex) end
  keep_state(record.id, state)
end

local function isolate(record)
  local cold = record.state.cold
  local fingerprint, error = cold.fp, cold.er
  if record.state.lane ~= QUARANTINE then cold.b = {n = record.state.redrives, r = cold.r} end
  rise(record)
  rest(record, QUARANTINE, verdict[2], fingerprint)
  cold.er = error
  keep_state(record.id, record.state)
end

local function readmit(record)
  local cold = record.state.cold
  local fingerprint, error, reason, at, b = cold.fp, cold.er, cold.r, cold.rm, cold.b
  if b and b.n == record.state.redrives then reason = b.r end
  cold.b = nil
  rise(record)
  rest(record, DEAD, reason, fingerprint, at)
  cold.er = error
  keep_state(record.id, record.state)
end

-- Due now. One of a group that waits for its time without a place joins its line at the next claim.
local function hasten(record)
  local state, cold = record.state, record.state.cold
  if not record.group or cold.t == PLACE then
    if state.due <= now then return end
    state.due = now
    enter_due(record.priority, record.queue, state, record.member)
  elseif cold.wk and cold.wk > now then
    cold.wk = now
    if not cold.t then call('ZADD', wait_key(record.queue), now, record.member) end
  end
  keep_state(record.id, state)
end

local function due_of(record)
  local state, cold = record.state, record.state.cold
  if record.group and cold.t ~= PLACE then return cold.wk end
  return state.due
end

-- Due at another time, by a run. In a group that is not strict it leaves the line until then.
local function postpone(record, due, run, back)
  local state, cold = record.state, record.state.cold
  local strict = record.group and rules(record.queue).strict
  if not record.group or (strict and cold.t == PLACE) then
    state.due = due
    leave_due(record.priority, record.queue, record.member)
    enter_due(record.priority, record.queue, state, record.member)
  else
    if not strict then
      if cold.t == PLACE then leave_due(record.priority, record.queue, record.member) end
      leave(record)
    end
    cold.wk = due
    if not cold.t then call('ZADD', wait_key(record.queue), due, record.member) end
  end
  cold.run = not back and (state.attempt > 0 and run .. '@' .. state.attempt or run) or nil
  keep_state(record.id, state)
end

-- What was put, with another priority or deadline. Both stand in it: the head has the priority, what is rarely set the deadline.
local function put_anew(record, message, priority, deadline)
  local marks, tail = byte(message, 20), sub(message, 21)
  if priority then marks = marks - marks % 4 + priority end
  if deadline then
    local at, _, _, _, delta, task, queue = cmsgpack.unpack_limit(message, 7, 1)
    local rare = record.rare
    rare.d, record.state.cold.dl = deadline > 0 and deadline or nil, nil
    tail = cmsgpack.pack(delta, task, queue) .. (next(rare) and cmsgpack.pack(rare) or '\192') .. sub(message, at + 1)
  end
  keep_field(MESSAGES, record.id, sub(message, 1, 19) .. string.char(marks) .. tail)
end

-- It waits otherwise from now on, or is cancelled; or what was cancelled waits again. Who stands in line in its group, stands there by the new priority.
local function edit(record, message, to)
  local state, cold = record.state, record.state.cold
  local _, run, back, cancel = unpack(verdict, 1, 4)
  local queue, priority, deadline, due = unpack(to, 1, 4)
  if cancel and not back then
    leave_due(record.priority, record.queue, record.member)
    drop(lease_key(record.priority, record.queue), record.member) -- its state may be gone
    if record.group then leave(record) end
    cancelled(record)
  else
    local in_line = record.group and cold.t ~= PLACE
    local moves = state.lane == DONE or queue or due or (priority and not in_line)
    if state.lane == DONE then rise(record) elseif moves then leave_due(record.priority, record.queue, record.member) end
    state.lane, state.due = READY, due or state.due
    if priority or deadline then put_anew(record, message, priority, deadline) end
    record.priority = priority or record.priority
    if record.group then cold.pr = record.priority end
    if in_line and cold.t then
      add(parked_key(record.queue, record.group), turn_of(rules(record.queue).strict, record.priority, cold.t), record.member)
    end
    if queue then
      cold.q = queue ~= record.task_queue and queue or nil
      record.queue = queue
      call('SADD', root .. 'qs', queue)
      woken[queue] = true
    end
    if moves then enter_due(record.priority, record.queue, state, record.member) end
  end
  cold.run = not back and (state.attempt > 0 and run .. '@' .. state.attempt or run) or nil
  keep_state(record.id, state)
end

-- Whether it waits as it was seen, and an edit is for it.
local function may_edit(record, was, to)
  local _, run, back, cancel = unpack(verdict, 1, 4)
  local state, cold, rare = record.state, record.state.cold, record.rare
  local queue, priority, deadline = unpack(was or {}, 1, 3)
  if queue and queue ~= record.queue or priority and priority ~= record.priority then return false end
  if deadline and deadline ~= (not cold.dl and rare.d or 0) then return false end
  if back and string.match(cold.run or '', '^[^@]*') ~= run then return false end
  if not (back and cancel) then return state.lane == READY and not (record.group and (to[1] or to[4])) end
  if state.lane ~= DONE or cold.r ~= 'cancelled' or rare.g or record.batch then return false end
  local held = rare.k and holder_of(key_name(record.task, rare.k))
  return not rare.k or (held and sub(held, 1, 16) == record.id)
end

local function may_judge(record, was, to)
  local lane = record.state.lane
  if kind == 'edit' then return may_edit(record, was, to) end
  if kind == 'hasten' or kind == 'postpone' then
    if lane ~= READY or not verdict[2] then return lane == READY end
    if verdict[3] then return string.match(record.state.cold.run or '', '^[^@]*') == verdict[2] end
    return (due_of(record) or 0) > now
  end
  if kind == 'return' then return lane == READY and is_returned(record) end
  if kind == 'readmit' then return lane == QUARANTINE end
  if kind == 'redrive' and lane == DONE then return record.state.cold.r ~= 'cancelled' end
  return lane == DEAD or lane == QUARANTINE
end

-- What can be said of a message that was set aside as what was put cannot be read.
local function unread(id, packed)
  local state = state_of(packed)
  local kept = call('HGET', root .. 'x', id)
  if not state or not state.cold.q or not kept then return end
  return {id = id, member = sub(kept, 1, 22), queue = state.cold.q, state = state, rare = {}, batch = state.cold.bt,
    counted = batches.AS[state.lane]}
end

-- The record of a handle that is as it says; what it was read from.
local function record_of_handle(i)
  local id = sub(ARGV[3], 16 * i - 15, 16 * i)
  local message = call('HGET', MESSAGES, id)
  local packed = message and call('HGET', STATES, id)
  if not message or not (packed or kind == 'hasten' or kind == 'postpone' or kind == 'edit') then return end
  local record = sound_of(id, message, packed) or (kind == 'discard' and unread(id, packed))
  if not record then return end
  local redrives, lane, _, fence, due, was, to = unpack(handles[i], 1, 7)
  if record.state.lane ~= lane or record.state.redrives ~= redrives then return end
  if (fence and record.state.fence ~= fence) or (due and due_of(record) ~= due) then return end
  if record.state.lane == QUARANTINE and record.state.cold.r == 'damaged' and kind ~= 'discard' and kind ~= 'replace' then
    return
  end
  record.task_queue = record.put_queue
  if may_judge(record, was, to) then return record, packed, message end
end

-- The draft to put instead, as `write_puts` takes it, or nil and what is refused. It takes over the key, and how long
-- that was to be held.
local function planned(record)
  local _, drafts, zones, ids = unpack(verdict, 1, 4)
  local draft = drafts[1]
  local key = draft[KEY_AT]
  local held = key and holder_of(key)
  if held and sub(held, 1, 16) == record.id then
    given_up[key] = record.id
    draft[KEY_FOR_AT] = math.max(draft[KEY_FOR_AT], (struct.unpack('>I8', held, 17)) - now)
  end
  settled_lanes[record.id] = GONE
  local list, duplicates = plan_puts(drafts, zones, ARGV[ids])
  if not list then return nil, {'stored', duplicates} end
  if #duplicates > 0 then return nil, {'held', duplicates[2]} end
  return list
end

local list
if kind == 'replace' then
  local record = record_of_handle(1)
  if not record then return {{0}, now} end
  local refused
  list, refused = planned(record)
  if not list then return refused end
end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end

for i, handle in ipairs(handles) do
  local record, packed, message = record_of_handle(i)
  words[i] = record and 1 or 0
  if record then
    woken[record.queue] = true
    if kind == 'redrive' then redrive(record, handle[3])
    elseif kind == 'return' then give_back(record)
    elseif kind == 'hasten' and verdict[2] then postpone(record, now, verdict[2])
    elseif kind == 'hasten' then hasten(record)
    elseif kind == 'postpone' then postpone(record, handle[3], verdict[2], verdict[3])
    elseif kind == 'edit' then edit(record, message, handle[7])
    elseif kind == 'isolate' then isolate(record)
    elseif kind == 'readmit' then readmit(record)
    elseif kind == 'replace' then remove(record, packed, message)
    else remove(record, packed, message, verdict[2] and 'done' or 'discarded') end
    flush()
  end
end
if list then
  for name in pairs(given_up) do call('HDEL', KEYS_OF, name) end
  write_puts(list)
end
write_cells()
flush()
admit()
batches:write()
for queue in pairs(woken) do wake_waiters(queue) end
return {words, now}
