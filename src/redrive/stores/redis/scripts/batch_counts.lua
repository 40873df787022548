-- needs: states
-- {batches}: per batch its counts, as they are stored; false where there are none.
return each('HMGET', batches.COUNTS, asked[1])
