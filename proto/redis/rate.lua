-- include: common
-- Requests of a team in one window, counted over all instances of cube-api. ARGV: prefix, team, window, more, ttl_ms. Answer: the total.
local counter = key('rl', ARGV[2], ARGV[3])
local total = redis.call('INCRBY', counter, ARGV[4])
if total == num(ARGV[4]) then redis.call('PEXPIRE', counter, ARGV[5]) end
return total
