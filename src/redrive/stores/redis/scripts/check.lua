-- needs: states groups
-- {queues}: {messages stored, messages that stand somewhere, {queue, group, …} in which a message is parked though a
-- place is free, {what, of which queue or '', what it is, …} of counters and settings that cannot be right}.
local stand, stuck, wrong = 0, {}, {}
local function is_wrong(what, queue, value)
  for _, part in ipairs({what, queue, tostring(value)}) do wrong[#wrong + 1] = part end
end

local function check_counter(name, key, least, most)
  local value = call('GET', key)
  local number = tonumber(value or 0)
  if not number or number < least or number > most or number % 1 ~= 0 then is_wrong(name, '', value) end
end

check_counter('the counter of messages', root .. 'n', 0, 2 ^ 48)
check_counter('the counter of cells', root .. 'cn', 0, 2 ^ 52)
local function check_settings(queue)
  local packed = call('HGET', SETTINGS, queue)
  local whole, said = pcall(cmsgpack.unpack, packed or '\128')
  if not whole or type(said) ~= 'table' then return is_wrong('its settings', queue, packed) end
  for name, values in pairs({order = {strict = 1, turns = 1}, on_dead = {block = 1, skip = 1}}) do
    if said[name] ~= nil and not values[said[name]] then is_wrong(name, queue, said[name]) end
  end
  local widths = call('HGETALL', root .. 'gw:' .. queue)
  widths[#widths + 1], widths[#widths + 2] = '', said.width or 1
  for i = 1, #widths, 2 do
    local width = tonumber(widths[i + 1])
    if not width or width < 1 or width % 1 ~= 0 then is_wrong('the width of its groups', queue, widths[i + 1]) end
  end
end

for _, queue in ipairs(asked[1]) do
  for priority = 0, 3 do
    stand = stand + call('ZCARD', due_key(priority, queue)) + call('ZCARD', lease_key(priority, queue))
  end
  for _, lane in ipairs({DEAD, QUARANTINE, DONE}) do stand = stand + call('ZCARD', rest_key(lane, queue)) end
  stand = stand + call('ZCARD', wait_key(queue))
  check_settings(queue)
  local counted, parked = call('HGET', root .. 'pn', queue) or 0, parked_in(queue)
  if tonumber(counted) ~= parked then is_wrong('the count of what is parked, which is ' .. parked .. ',', queue, counted) end
  for _, group in ipairs(call('SMEMBERS', names_key(queue))) do
    local parked = call('ZCARD', parked_key(queue, group))
    stand = stand + parked
    if parked > 0 and call('SCARD', places_key(queue, group)) < width_of(queue, group)
      and call('SISMEMBER', unfinished, queue .. '\0' .. group) == 0 then
      stuck[#stuck + 1] = queue
      stuck[#stuck + 1] = group
    end
  end
end
return {call('HLEN', MESSAGES) - call('HEXISTS', MESSAGES, ''), stand, stuck, wrong}
