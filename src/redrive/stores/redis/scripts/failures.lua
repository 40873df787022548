-- {cursor, fingerprints or nil, tasks or nil}, each a map: {cursor that leads on, {name of a group of dead messages that
-- fits, …}}.
local page, names = call('SSCAN', root .. 'fg', asked[1], 'COUNT', 5000), {}
for _, name in ipairs(page[2]) do
  local fingerprint, task = string.match(name, '^(%Z*)%z(.*)$')
  if (not asked[2] or asked[2][fingerprint]) and (not asked[3] or asked[3][task]) then names[#names + 1] = name end
end
return {page[1], names}
