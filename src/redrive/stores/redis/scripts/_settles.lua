-- Settling. `plan_moves` says what each settlement comes to and writes nothing but what is collected for later.
local ACK, RETRY, DIE, POISON = 0, 1, 2, 3
local EXPIRIES, FAILURES = root .. 'ex', root .. 'fg'
local OK, STALE, CANCELLED = 0, 1, 2

local function failures_key(name) return root .. 'f:' .. name end

-- It comes to rest in this lane. `fingerprint`: of the fault that brought it there, if any; `at`: since when it rests, if
-- that is not now.
local function rest(record, lane, reason, fingerprint, at)
  local state, cold = record.state, record.state.cold
  at = at or now
  state.lane, state.due = lane, 0
  cold.r, cold.rm, cold.df = reason, at, nil
  add(rest_key(lane, record.queue), at, record.member)
  if record.batch then
    batches:count(record.batch, record.counted, lane == DONE and reason == 'cancelled' and reason or batches.AS[lane])
    if lane ~= DONE then add(rest_key('b' .. lane, record.batch), at, record.member) end
    cold.bt = record.batch
  end
  if fingerprint then cold.fp = fingerprint end
  if lane == DEAD then
    cold.fk = (cold.fp or '') .. '\0' .. record.task
    add(failures_key(cold.fk), at, record.member)
    call('SADD', FAILURES, cold.fk)
  end
end

local function expire(record, at_ms)
  record.state.cold.ex = at_ms
  add(EXPIRIES, at_ms, record.member)
end

-- It rests no more.
local function rise(record)
  local cold = record.state.cold
  drop(rest_key(record.state.lane, record.queue), record.member)
  if cold.ex then drop(EXPIRIES, record.member) end
  if cold.bt then drop(rest_key('b' .. record.state.lane, cold.bt), record.member) end
  if cold.fk then
    call('ZREM', failures_key(cold.fk), record.member)
    if call('EXISTS', failures_key(cold.fk)) == 0 then call('SREM', FAILURES, cold.fk) end
  end
  cold.r, cold.rm, cold.ex, cold.fk, cold.fp, cold.er, cold.bt = nil, nil, nil, nil, nil, nil, nil
end

local function cancelled(record)
  rest(record, DONE, 'cancelled')
  expire(record, now + 24 * 3600 * 1000)
end

-- What a done message had, while a run has it again: its checkpoint and its result.
local function laid_aside(id) return id .. 'p', id .. 'r' end

local function drop_laid_aside(id)
  for _, field in ipairs({laid_aside(id)}) do drop_field(PROGRESS, field) end
end

local function free_key_of(id, message)
  local whole, put = pcall(read_message, message or call('HGET', MESSAGES, id))
  if whole and type(put.rare) == 'table' and type(put.rare.k) == 'string' then free_key(id, put) end
end

-- Forget what lies beside a message, and itself.
local function forget(id, packed, message)
  drop_field(MESSAGES, id)
  if not packed then
    free_key_of(id, message)
    return
  end
  drop_field(STATES, id)
  local flags = byte(packed, 6)
  call('HDEL', root .. 'x', id)
  call('HDEL', root .. 'xw', id)
  if flags % BESIDE == 0 then return end
  if flags % 2 == KEY then free_key_of(id, message) end
  for _, field in ipairs(fault_fields(id, byte(packed, 23))) do drop_field(FAULTS, field) end
  if bit.band(flags, HAS_PROGRESS) ~= 0 then
    drop_field(PROGRESS, id)
    drop_laid_aside(id)
  end
end

-- A resting message is gone for good; if it did not end well its batch counts it as `counted`.
local function remove(record, packed, message, counted)
  if record.state.lane ~= DONE then batches:count(record.batch, record.counted, counted) end
  rise(record)
  if record.group and record.state.cold.t then leave(record) end
  drop_field(RESULTS, record.id)
  forget(record.id, packed, message)
end

-- A settlement that applies and is no plain ack, with the `id`, `member`, `packed` state and `state` of its message; see
-- `move_of` in exchange.lua.
local function settle_move(move)
  local id, member, packed, state = move.id, move.member, move.packed, move.state
  local kind, queue, priority = move.kind, move.queue, move.priority
  if kind == ACK and not move.ms then
    batches:count(move.batch, 'open', 'done')
    return forget(id, packed)
  end
  local record = {id = id, member = member, queue = queue, priority = priority, state = state, batch = move.batch,
    counted = 'open'}
  local cold = state.cold
  record.group = cold.g
  cold.df = move.deferral
  if kind == ACK then
    rest(record, DONE, move.reason)
    if move.ms >= 0 then expire(record, math.min(now + move.ms, TIME_MAX)) end
    if move.result then
      cold.res = 1
      keep_field(RESULTS, id, ARGV[move.result])
    end
  else
    if not move.counts then state.attempt = state.attempt - 1 end
    if move.counts then unmark(state, SUSPECT) end
    unmark(state, ALONE)
    if move.crashed then
      state.crashes, state.alone = state.crashes + 1, state.alone + (move.alone and 1 or 0)
      mark(state, SUSPECT)
    end
    if move.fault then remember_fault(id, state, ARGV[move.fault]) end
    if kind == RETRY and move.held then state.held = state.held + math.max(0, move.ms - now) end
    if has(state, CANCEL) then
      cancelled(record)
    elseif kind == RETRY then
      state.lane, state.due = READY, math.min(move.ms, TIME_MAX)
    else
      record.task = task_of(call('HGET', MESSAGES, id) or '')
      rest(record, kind == DIE and DEAD or QUARANTINE, move.reason, move.fingerprint)
    end
  end
  local due = state.lane == READY
  if record.group and cold.t == PLACE then
    touch(queue, record.group)
    if not keeps_place(record) then
      call('SREM', places_key(queue, record.group), member)
      cold.t = nil
      if due then
        due, cold.wk = false, state.due
        add(wait_key(queue), state.due, member)
      end
    end
  end
  if due then enter_due(priority, queue, state, member) end
  keep_state(id, state)
end
