-- {key, cursor}: a page of a large sorted set.
return call('ZSCAN', asked[1], asked[2], 'COUNT', 5000)
