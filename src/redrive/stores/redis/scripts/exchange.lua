-- needs: full states faults cells groups puts settles looks claims
-- {acks, moves, zones of drafts, swaps, asks, retries}: settles all, then claims. Nothing is
-- written before all is known to apply.
-- acks: per zone {priority, queue, batch or nil, ARGV index of members, of fences, swaps}, where swaps is empty or, for acks
-- that swap a cell each, {keys, versions, ARGV index of the first value, times to live}; retries: the first five and due
-- times, ARGV index of the first fault; moves: see move_of, with their members in ARGV[3] and fences in ARGV[4].
-- The answer: {now, {ack, number in it, …} that are stale, the same and the word of retries, words of moves, claims,
-- positions of asks that were clogged, ids of what was set aside, batches of which a member died or nothing is open}.
local acks, moves, zones, swaps, asks, retries = unpack(asked, 1, 6)
local stale, other, words, drafts, draft_ids = {}, {}, {}, {}, {}
local acked, retried, moved, woken, damaged = {}, {}, {}, {}, {}

local function members_in(text)
  local members, ids = {}, {}
  for i = 1, #text / 22 do
    members[i] = sub(text, 22 * i - 21, 22 * i)
    ids[i] = sub(text, 22 * i - 15, 22 * i)
  end
  return members, ids
end

for at, row in ipairs(acks) do
  local ack = {priority = row[1], queue = row[2], batch = row[3], members = {}, ids = {}, beside = {}}
  local fences, n, swap = ARGV[row[5]], 0, #row[6] > 0 and row[6]
  local members, ids = members_in(ARGV[row[4]])
  if swap then read_cells(swap[1]) end
  for i, packed in ipairs(each('HMGET', STATES, ids)) do
    local current = is_current(packed, sub(fences, 4 * i - 3, 4 * i), members[i])
    local flags = current and byte(packed, 6)
    if current and flags % (2 * GROUP) >= GROUP then -- its group will be read
      local why = select(2, state_of(packed))
      if why then
        current = false
        damaged[#damaged + 1] = {members[i], ack.queue, ack.priority, why, ack.batch}
      end
    end
    if not current or (swap and not swap_cell(swap[1][i], swap[2][i], swap[3] + i - 1, swap[4][i])) then
      stale[#stale + 1] = at - 1
      stale[#stale + 1] = i - 1
    else
      n = n + 1
      ack.members[n], ack.ids[n] = members[i], ids[i]
      if flags % BESIDE ~= 0 then ack.beside[#ack.beside + 1] = {ids[i], members[i], packed} end
    end
  end
  acked[at] = ack
end

-- Functions are made only where they are used: each one takes long to find its many outer names. And a script has 200 local
-- names at most, its loops' among them.
if #retries > 0 then
  -- A counted retry without cancel and group, the most frequent settlement after an ack: as bytes.
  local function plan_retry(retry, i, id, member, packed)
    local at_ms, flags = math.min(retry.dues[i], TIME_MAX), byte(packed, 6)
    local slot, count = next_slot(byte(packed, 23))
    flags = bit.bor(bit.band(flags, bit.bnot(SUSPECT + ALONE)), HAS_FAULTS)
    local n, states, faults, due = 2 * retry.count, retry.states, retry.faults, retry.due
    states[n + 1], faults[n + 1], due[n + 1] = id, id .. string.char(slot), text_of(at_ms)
    states[n + 2] = READY .. sub(packed, 2, 5) .. string.char(flags) .. sub(packed, 7, 22) .. string.char(count)
      .. struct.pack('>I8', at_ms) .. sub(packed, 32)
    faults[n + 2], due[n + 2] = ARGV[retry.fault + i - 1], member
    retry.count = retry.count + 1
    retry.members[retry.count] = member
  end

  local function read_retries()
    for at, row in ipairs(retries) do
      local retry = {priority = row[1], queue = row[2], batch = row[3], dues = row[6], fault = row[7], states = {},
        faults = {}, due = {}, members = {}, count = 0}
      local fences, members, ids = ARGV[row[5]], members_in(ARGV[row[4]])
      for i, packed in ipairs(each('HMGET', STATES, ids)) do
        local word
        if not is_current(packed, sub(fences, 4 * i - 3, 4 * i), members[i]) then
          word = STALE
        elseif bit.band(byte(packed, 6), CANCEL + COLD) ~= 0 then
          local state, why = state_of(packed)
          if state then
            moved[#moved + 1] = {kind = RETRY, queue = retry.queue, priority = retry.priority, ms = retry.dues[i], counts = true,
              fault = retry.fault + i - 1, id = ids[i], member = members[i], packed = packed, state = state,
              batch = retry.batch}
            word = bit.band(byte(packed, 6), CANCEL) ~= 0 and CANCELLED
          else
            damaged[#damaged + 1] = {members[i], retry.queue, retry.priority, why, retry.batch}
            word = STALE
          end
        else
          plan_retry(retry, i, ids[i], members[i], packed)
        end
        if word then
          for _, part in ipairs({at - 1, i - 1, word}) do other[#other + 1] = part end
        end
      end
      retried[at] = retry
    end
  end

  read_retries()
end

if #moves > 0 then
  -- A settlement that is not a plain ack, by the names of what was asked. `ms` is when a retry is due, or how long an ack
  -- keeps the message (less than 0: for ever; nil: not at all); `fault` and `result` are indexes into ARGV; `follow_ups` is
  -- {rows of drafts, ARGV index of their ids}; `crashed` says that its process died, `alone` that it was alone in it.
  local function move_of(row)
    return {kind = row[1], priority = row[2], queue = row[3], batch = row[4], ms = row[5], counts = row[6], held = row[7],
      reason = row[8], fault = row[9], fingerprint = row[10], result = row[11], swaps = row[12], follow_ups = row[13],
      deferral = row[14], crashed = row[15], alone = row[16]}
  end

  local function read_moves()
    local seen, keys_named = {}, {}
    local move_members, move_ids = members_in(ARGV[3])
    local packed_moves = each('HMGET', STATES, move_ids)
    for i, row in ipairs(moves) do
      moves[i] = move_of(row)
      for _, swap in ipairs(moves[i].swaps or {}) do keys_named[#keys_named + 1] = swap[1] end
    end
    read_cells(keys_named)
    for i, move in ipairs(moves) do
      local member, id = move_members[i], move_ids[i]
      local packed, state, why = not seen[id] and packed_moves[i], nil, nil
      if is_current(packed, sub(ARGV[4], 4 * i - 3, 4 * i), member) then state, why = state_of(packed) end
      if why then damaged[#damaged + 1] = {member, move.queue, move.priority, why, move.batch} end
      if not state or not swap_together(move.swaps) then
        words[i] = STALE
      else
        seen[id] = true
        move.id, move.member, move.packed, move.state = id, member, packed, state
        moved[#moved + 1] = move
        words[i] = has(state, CANCEL) and move.kind ~= ACK and CANCELLED or OK
        if words[i] == OK and move.follow_ups then
          local rows, ids = unpack(move.follow_ups)
          for _, row in ipairs(rows) do drafts[#drafts + 1] = row end
          draft_ids[#draft_ids + 1] = ARGV[ids]
        end
      end
    end
  end

  read_moves()
end

local list, refused = {}, nil
if #drafts > 0 then
  for _, ack in ipairs(acked) do
    for _, id in ipairs(ack.ids) do settled_lanes[id] = GONE end
  end
  for _, move in ipairs(moved) do
    settled_lanes[move.id] = move.kind == ACK and (move.ms and DONE or GONE) or has(move.state, CANCEL) and DONE
      or ({READY, DEAD, QUARANTINE})[move.kind]
  end
  -- A key that an ack frees is free for what follows it, in any order: its holder is gone.
  list, refused = plan_puts(drafts, zones, table.concat(draft_ids))
  if not list then return {'stored', refused} end
end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end

local function leave_its_group(member, queue, packed)
  local state = read_state(packed)
  leave({member = member, queue = queue, group = state.cold.g, state = state})
end

for _, ack in ipairs(acked) do each('ZREM', lease_key(ack.priority, ack.queue), ack.members) end
for _, retry in ipairs(retried) do each('ZREM', lease_key(retry.priority, retry.queue), retry.members) end
for _, move in ipairs(moved) do drop(lease_key(move.priority, move.queue), move.member) end
flush()
for _, ack in ipairs(acked) do
  batches:count(ack.batch, 'open', 'done', #ack.ids)
  for _, one in ipairs(ack.beside) do
    local id, member, packed = unpack(one)
    forget(id, packed)
    if bit.band(byte(packed, 6), GROUP) ~= 0 then leave_its_group(member, ack.queue, packed) end
  end
  each('HDEL', STATES, ack.ids)
  each('HDEL', MESSAGES, ack.ids)
end
for _, retry in ipairs(retried) do
  if retry.count > 0 then
    add_all(due_key(retry.priority, retry.queue), retry.due)
    add_all(retry_key(retry.priority, retry.queue), retry.due) -- a counted retry has an attempt behind it
    each('HSET', STATES, retry.states)
    each('HSET', FAULTS, retry.faults)
    woken[retry.queue] = true
  end
end
for _, move in ipairs(moved) do
  if move.kind == ACK and not move.ms and has(move.state, GROUP) then
    leave_its_group(move.member, move.queue, move.packed)
  end
  settle_move(move)
  if move.kind == RETRY then woken[move.queue] = true end
end
write_cells()
flush()
write_puts(list)
admit()
finish_admitting()
for _, one in ipairs(damaged) do set_aside(unpack(one, 1, 5)) end
local answers, clogged = {}, {}
for position, row in ipairs(asks) do claim(row, position - 1, answers, clogged) end
for queue in pairs(admitted_to) do -- others may have room for those that were let in and are left
  if has_due(queue) then woken[queue] = true end
end
for queue in pairs(woken) do wake_waiters(queue) end
batches:write()
return {now, stale, other, words, answers, clogged, aside, batches.named}
