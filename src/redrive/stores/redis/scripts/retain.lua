-- needs: states faults groups puts settles
-- {queue, {lane, newest that stay or nil, since when they stay or nil}, …}: how many were removed per lane.
local RETAIN_MAX = 1000
local removed = {}
for n = 2, #asked do
  local lane, newest, since = asked[n][1], asked[n][2], asked[n][3]
  local key = rest_key(lane, asked[1])
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
      remove({id = id, member = member, queue = asked[1], group = state.cold.g, state = state}, packed)
    else
      set_aside(member, asked[1], nil, why)
    end
  end
  flush()
  removed[#removed + 1] = #members
end
admit()
if next(admitted_to) then wake_waiters(asked[1]) end
return removed
