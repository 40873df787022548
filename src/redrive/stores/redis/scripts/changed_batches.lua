-- needs: states
-- {limit}, and in ARGV[3] the batch after which to begin, or '': the batches to look at, sorted.
local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
return call('ZRANGEBYLEX', batches.CHANGED, from, '+', 'LIMIT', 0, asked[1])
