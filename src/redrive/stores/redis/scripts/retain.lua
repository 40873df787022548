-- needs: states faults groups puts settles
-- {queue, {lane, newest that stay or nil, since when they stay or nil}, …}: how many were removed per lane.
local RETAIN_MAX = 1000
local queue, removed = asked[1], {}
for n = 2, #asked do
  local lane, newest, since = unpack(asked[n], 1, 3)
  local key = rest_key(lane, queue)
  local beyond = newest and call('ZCARD', key) - newest or 0
  local old = since and call('ZCOUNT', key, '-inf', '(' .. since) or 0
  local going = math.min(math.max(beyond, old), RETAIN_MAX)
  local members = going > 0 and call('ZRANGE', key, 0, going - 1) or {}
  for _, member in ipairs(members) do
    local id = sub(member, 7)
    local packed = call('HGET', STATES, id)
    local state, why = state_of(packed)
    if state and state.lane ~= lane then state, why = nil, 'its state is in another lane' end
    if state then
      remove({id = id, member = member, queue = queue, group = state.cold.g, state = state, batch = state.cold.bt,
        counted = batches.AS[lane]}, packed, nil, 'discarded')
    else
      set_aside(member, queue, nil, why)
    end
  end
  flush()
  removed[#removed + 1] = #members
end
admit()
batches:write()
if next(admitted_to) then wake_waiters(queue) end
return removed
