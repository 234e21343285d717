# The claim goes away under a living holder.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
$node->wait_issuing;
my $postmaster = $node->postmaster_pid;
my $pid = $node->stat('pid');
my $load = Snowflake::Load->start($node, sessions => 3, interval => 0.005);

my %loss = (
	'its lease is revoked' => sub { my ($row) = @_; $etcd->lease_revoke($row->{lease_id}); },
	'its claim key is deleted' => sub { my ($row) = @_; $etcd->del($etcd->claim_key($row->{worker})); },
	'its claim key is overwritten by another' => sub {
		my ($row) = @_;
		$etcd->put($etcd->claim_key($row->{worker}), 'another', $etcd->lease_grant(600));
	},
	'its claim key is overwritten, with the holder\'s own name, on no lease' => sub {
		my ($row) = @_;
		$etcd->put($etcd->claim_key($row->{worker}), 'a');
	},
	'its mark is overwritten by what is no number' => sub {
		my ($row) = @_;
		$etcd->put($etcd->mark_key($row->{worker}), 'nonsense');
	},
);

for my $what (sort keys %loss)
{
	my $before = $node->stat_row;
	my $offset = $node->log_offset;
	my $from = time;
	$loss{$what}->($before);
	my $row = $node->wait_stat(sub { $_[0]->{claims} > $before->{claims} && $_[0]->{worker} != $before->{worker} && $_[0]->{state} eq 'issuing' }, 10);
	my $took = time - $from;
	ok($row, "$what: it takes another number") or next;
	cmp_ok($took, '<=', 2, sprintf('%s: within 2 s (%.2f s)', $what, $took));
	isnt($row->{lease_id}, $before->{lease_id}, "$what: under a new lease");
	is($etcd->claim($row->{worker})->{lease}, $row->{lease_id}, "$what: as etcd says");
	ok((grep { $_ eq sprintf('%x', $row->{lease_id}) } $etcd->lease_list), "$what: the lease lives");
	ok(!(grep { $_ eq sprintf('%x', $before->{lease_id}) } $etcd->lease_list), "$what: the old one does not");
	like($node->log_since($offset), qr/lost its worker number/, "$what: the log says so");
}

# Twice in one beat, and again while it claims.
for (1 .. 5)
{
	my $lease = $node->stat('lease_id') // next;
	$etcd->lease_revoke($lease) if grep { $_ eq sprintf('%x', $lease) } $etcd->lease_list;
	eventually(5, sub { ($node->stat('lease_id') // $lease) ne $lease }, 0.01);
}
ok($node->wait_state('issuing', 10), 'losses in quick succession end in a claim');
my $moment = time;
ok(eventually(10, sub { defined $load->first_success_after($moment) }), 'and minting');

$load->stop;
my @calls = $load->calls;
is(scalar(grep { $_->{sqlstate} ne '00000' } @calls), 0, 'not one of ' . @calls . ' calls was refused');
my ($slowest) = sort { $b <=> $a } map { $_->{took} } @calls;
note(sprintf('the slowest took %.3f s', $slowest));
my $found = idcheck($load->id_files);
ok($found->{clean}, 'no ID was minted twice, and each session\'s increase, over all changes of the number');
cmp_ok($found->{node_changes}, '>=', 3 * keys %loss, 'which happened under the sessions\' feet');
is($node->postmaster_pid, $postmaster, 'the server was not restarted');
is($node->stat('pid'), $pid, 'nor its background worker');

done_testing();
