-- needs: states
-- {limit, only those with a dead or quarantined member}, and in ARGV[3] the batch after which to begin, or '': batches, sorted.
local from = ARGV[3] == '' and '-' or '(' .. ARGV[3]
return call('ZRANGEBYLEX', asked[2] and batches.FAILED or batches.NAMES, from, '+', 'LIMIT', 0, asked[1])
