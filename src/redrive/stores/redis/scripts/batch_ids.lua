-- needs: states
-- {limit}, and in ARGV[3] the batch after which to begin, or '': all batches, sorted.
local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
return call('ZRANGEBYLEX', batches.NAMES, from, '+', 'LIMIT', 0, asked[1])
