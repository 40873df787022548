-- {cursor, fingerprints or nil, tasks or nil}, each a map: {cursor that leads on, {name of a group of dead messages that
-- fits, …}}.
local from, fingerprints, tasks = unpack(asked, 1, 3)
local page, names = call('SSCAN', root .. 'fg', from, 'COUNT', 5000), {}
for _, name in ipairs(page[2]) do
  local fingerprint, task = string.match(name, '^(%Z*)%z(.*)$')
  if (not fingerprints or fingerprints[fingerprint]) and (not tasks or tasks[task]) then names[#names + 1] = name end
end
return {page[1], names}
