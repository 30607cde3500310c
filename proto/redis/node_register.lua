-- include: common
-- A node presented itself to a master. ARGV: prefix, node, now_ms, instance, info (packed RegisterRequest), then field, value pairs.
-- Cordon, drain and reservations stay as they are. Answer: ids of its tombstones.
local h = key('node', ARGV[2])
redis.call('HSET', h, 'info', ARGV[5], 'status', 'ready', 'report_ms', ARGV[3], 'master', ARGV[4])
for i = 6, #ARGV, 2 do redis.call('HSET', h, ARGV[i], ARGV[i + 1]) end
node_changed(ARGV[2])
return redis.call('SMEMBERS', key('tomb', ARGV[2]))
