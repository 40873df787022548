-- {cursor, how long lately is, how long the while before}: a page of the groups of dead messages: {cursor that leads on, {name, count, first, last,
-- member of the last, how many came to rest lately, how many in the while before, …}}.
local LAST_LOOKED = 10
local from, lately_ms, before_ms = unpack(asked)
local page, answer = call('SSCAN', root .. 'fg', from, 'COUNT', 300), {}
local lately = now - lately_ms
for _, name in ipairs(page[2]) do
  local key = root .. 'f:' .. name
  local first, last = call('ZRANGE', key, 0, 0, 'WITHSCORES'), call('ZREVRANGE', key, 0, LAST_LOOKED - 1, 'WITHSCORES')
  while #last > 0 and #last[1] ~= 22 do -- no message's
    table.remove(last, 1)
    table.remove(last, 1)
  end
  if first[1] and last[1] then
    local recent, earlier = 0, 0
    if tonumber(last[2]) >= lately - before_ms then
      recent = call('ZCOUNT', key, lately, '+inf')
      earlier = call('ZCOUNT', key, lately - before_ms, '(' .. lately)
    end
    for _, part in ipairs({name, call('ZCARD', key), tonumber(first[2]), tonumber(last[2]), last[1], recent, earlier}) do
      answer[#answer + 1] = part
    end
  end
end
return {page[1], answer}
