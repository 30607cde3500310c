-- include: common
-- A service says that it lives. ARGV: prefix, kind, instance, address, now_ms, ttl_ms. Answer: members of the kind that are alive.
local zset = key('svc', ARGV[2])
redis.call('SET', key('svc', ARGV[2], ARGV[3]), ARGV[4], 'PX', ARGV[6])
redis.call('ZREMRANGEBYSCORE', zset, '-inf', '(' .. text(num(ARGV[5]) - 60000))
redis.call('ZADD', zset, text(num(ARGV[5]) + num(ARGV[6])), ARGV[3] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', zset, 120000)
return redis.call('ZRANGEBYSCORE', zset, ARGV[5], '+inf')
