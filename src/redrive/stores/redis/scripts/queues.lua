-- All queues that ever held messages, and all with settings: {held, set}.
return {call('SMEMBERS', root .. 'qs'), call('HKEYS', SETTINGS)}
