# The server stops when it is told to, whatever etcd does.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Process qw(eventually);
use Snowflake::Proxy;

my $etcd = Snowflake::Etcd->new->start;
my $proxy = Snowflake::Proxy->new($etcd->port);
my $node = Snowflake::Instance->create('a',
	settings => {
		etcd_endpoints => $proxy->endpoint, lease_ttl => '5s', reserve => '1s', renew_interval => '200ms' });
$node->wait_issuing;

# --- a clean stop and what it leaves ---

for my $round (1 .. 3)
{
	my $number = $node->wait_issuing->{worker};
	my $load = $node->stat('ids_issued');
	$node->mint(100);
	my $took = $node->timed_stop('fast');
	cmp_ok($took, '<=', 2, sprintf('a clean stop is quick (%.2f s)', $took));
	is($etcd->claim($number), undef, 'it frees the worker number at once');
	is(scalar($etcd->lease_list), 0, 'and leaves no lease');
	like($etcd->mark($number), qr/^\d{13}$/, 'the mark stays');
	$node->start;
	$took = $node->seconds_to_mint(10);
	cmp_ok($took, '<=', 1, sprintf('after a restart it mints within 1 s of accepting connections (%.2f s)', $took));
}
$node->timed_stop('fast');

# --- every state of the worker, every state of the network ---

my %network = (
	healthy => sub { $proxy->mode('pass') },
	stopped => sub { $proxy->mode('refuse') },
	paused => sub { $proxy->mode('pass'); $etcd->pause },
	silent => sub { $proxy->mode('blackhole') },
	unreachable => sub { $proxy->mode('hang_connect') },
	slow => sub { $proxy->mode('trickle') },
);

sub heal { $etcd->resume; $proxy->mode('pass'); return; }

# Brings the server into a state with that network, undef where the two can't be together.
my %state = (
	starting => sub {
		my ($network) = @_;
		$network{$network}->();
		$node->start_only;
		return 'starting';
	},
	claiming => sub {
		my ($network) = @_;
		return undef if $network eq 'healthy';
		$network{$network}->();
		$node->start;
		$node->wait_state('claiming|starting', 10);
		sleep 0.3;    # so that a request is under way
		return $node->state;
	},
	issuing => sub {
		my ($network) = @_;
		$node->start;
		$node->wait_issuing;
		$network{$network}->();
		return $node->state;
	},
	fenced => sub {
		my ($network) = @_;
		$node->start;
		$node->wait_issuing;
		if ($network eq 'healthy') { $proxy->mode('answer', 'no_space', '/kv/txn'); }
		else { $network{$network}->(); }
		my $row = $node->wait_state('fenced', 10);
		return $row ? $row->{state} : $node->state;
	},
);

for my $network (sort keys %network)
{
	for my $state ($network eq 'slow' ? 'issuing' : sort keys %state)
	{
		my $reached = $state{$state}->($network) // next;
		like($reached, $state eq 'claiming' ? qr/^(?:claiming|starting)$/ : qr/^$state$/, "etcd is $network and the instance $state");
		my $took = $node->timed_stop('fast') // 99;
		cmp_ok($took, '<=', 2, sprintf('then stop -m fast is quick (%.2f s)', $took));
		heal();
	}
}

for my $mode (qw(smart immediate))
{
	for my $network (qw(healthy silent))
	{
		for my $state ($mode eq 'smart' ? qw(issuing fenced) : qw(fenced))
		{
			$state{$state}->($network);
			my $took = $node->timed_stop($mode) // 99;
			cmp_ok($took, '<=', 3, sprintf('etcd is %s and the instance %s: stop -m %s is quick (%.2f s)', $network, $state, $mode, $took));
			heal();
		}
	}
}

# --- all numbers held by others; a restart rather than a stop ---

my $lease = $etcd->lease_grant(600);
$etcd->put($etcd->claim_key($_), 'another', $lease) for 0 .. 9;
$etcd->put_many(map { ($etcd->claim_key($_) => 'another') } 10 .. 127);
$node->start;
is($node->wait_state('no_worker_free', 15)->{state}, 'no_worker_free', 'all numbers are held');
my $took = $node->timed_stop('fast');
cmp_ok($took, '<=', 2, sprintf('then stop -m fast is quick (%.2f s)', $took));

like($node->log_since(0), qr/database system is shut down/, 'the server shuts down in order');
unlike($node->log_since(0), qr/PANIC|signal 11|signal 6|terminating any other active server processes/, 'and nothing crashed on the way');

done_testing();
