-- The ids in ARGV[3]: {why each was set aside, or false, …}, {its member and its state as it was, or false, …}.
local ids = {}
for i = 1, #ARGV[3] / 16 do ids[i] = sub(ARGV[3], 16 * i - 15, 16 * i) end
return {each('HMGET', root .. 'xw', ids), each('HMGET', root .. 'x', ids)}
