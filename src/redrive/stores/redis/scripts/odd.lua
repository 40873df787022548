-- needs: states groups
-- {queues, names of failure groups, set and cursor to go on from, whether to look at cells}: what sets hold that is no
-- message's: of each queue's sets, of the places and lines of its groups, and of failure groups; and cells that cannot be
-- read. {set and cursor to go on from, or 0, {key, member, why, queue and group whose place it holds, or '', …}}.
local LOOKED_MOST = 5000
local queues, failure_groups, at, cursor, and_cells = unpack(asked, 1, 5)
local keys, answer, looked = {}, {}, 0

local function list(key, queue, group) keys[#keys + 1] = {key, queue, group} end

for _, queue in ipairs(queues) do
  for priority = 0, 3 do
    for _, key in ipairs({due_key(priority, queue), retry_key(priority, queue), lease_key(priority, queue)}) do list(key) end
  end
  list(wait_key(queue))
  for _, lane in ipairs({DEAD, QUARANTINE, DONE}) do list(rest_key(lane, queue)) end
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do
    list(parked_key(queue, group))
    list(places_key(queue, group), queue, group)
  end
end
if and_cells then
  list(root .. 'c')
  list(root .. 'k')
end
for _, name in ipairs(failure_groups) do list(root .. 'f:' .. name) end

local function why_odd(member, group)
  if not is_member(member) then return 'it is no member of ours' end
  local id = sub(member, 7)
  if call('HEXISTS', MESSAGES, id) == 0 then return 'its message is gone' end
  if not group then return end
  local packed = call('HGET', STATES, id)
  local state = state_of(packed)
  if not packed or (state and (state.cold.g ~= group or state.cold.t ~= PLACE)) then return 'its message holds no place there' end
end

local function why_unread(key, value)
  if key == root .. 'k' then return #value < 24 and 'the holder of this key cannot be read' end
  if #value < 17 or struct.unpack('>I8', value) > 2 ^ 52 then return 'the cell cannot be read' end
end

local function look(key, queue, group, command, cursor, step)
  repeat
    local page = call(command, key, cursor, 'COUNT', 1000)
    cursor = page[1]
    for i = 1, #page[2], step do
      local member = page[2][i]
      local why
      if command == 'HSCAN' then why = why_unread(key, page[2][i + 1]) else why = why_odd(member, group) end
      looked = looked + 1
      if why then
        for _, part in ipairs({sub(key, #root + 1), member, why, queue or '', group or ''}) do answer[#answer + 1] = part end
      end
    end
  until cursor == '0' or looked >= LOOKED_MOST
  return cursor
end

while at < #keys and looked < LOOKED_MOST do
  local key, queue, group = unpack(keys[at + 1])
  local kind = call('TYPE', key).ok
  if kind == 'zset' then
    cursor = look(key, queue, group, 'ZSCAN', cursor, 2)
  elseif kind == 'set' then
    cursor = look(key, queue, group, 'SSCAN', cursor, 1)
  end
  if kind == 'hash' then cursor = look(key, nil, nil, 'HSCAN', cursor, 2) end
  if cursor == '0' then at = at + 1 end
end
return {at < #keys and at or 0, cursor, answer}
