-- {queue}: {groups in which somebody stands, groups with a width of their own}.
return {call('SMEMBERS', root .. 'gn:' .. asked[1]), call('HKEYS', root .. 'gw:' .. asked[1])}
