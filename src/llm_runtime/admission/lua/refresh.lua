-- Keeps holds from lapsing; also puts back those that a restart of Redis has lost.
local lease_s = tonumber(ARGV[1])
for i = 2, #ARGV do
  redis.call('ZADD', KEYS[2], text(now + lease_s), ARGV[i])
end
redis.call('EXPIRE', KEYS[2], math.ceil(lease_s) + 60)
return #ARGV - 1
