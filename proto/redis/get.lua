-- include: common
-- The record of one sandbox, its node's activity figures for it, and its place among the index. ARGV: prefix, id.
local sb = redis.call('HGETALL', key('sb', ARGV[2]))
if #sb == 0 then return {} end
local node = redis.call('HGET', key('sb', ARGV[2]), 'node')
return {sb, node and redis.call('HGET', key('act', node), ARGV[2]) or ''}
