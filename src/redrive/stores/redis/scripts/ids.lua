-- {cursor}, and in ARGV[3] a pattern: {cursor that leads on, the ids of a page of all messages that match}.
local page, ids = call('HSCAN', MESSAGES, asked[1], 'MATCH', ARGV[3], 'COUNT', 5000), {}
for i = 1, #page[2], 2 do ids[#ids + 1] = page[2][i] end
return {page[1], ids}
