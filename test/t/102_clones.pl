# Instances that come from one data directory: a base backup of a running one, a copy of the files of
# a stopped one. Nothing in it says who they are, so they never share a worker number.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually slurp);

my $etcd = Snowflake::Etcd->new->start;
my $original = Snowflake::Instance->create('original', etcd => $etcd, settings => { reserve => '5s', lease_ttl => '10s' },
	init => { allows_streaming => 1 });
$original->wait_issuing;
$original->sql('CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_nextval())');

my @loads;
sub load
{
	push @loads, map { Snowflake::Load->start($_, interval => 0.002, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 1000)') } @_;
	return;
}

# Nobody has renewed for as long as the reserve lasts.
sub all_marks_past
{
	return eventually(30, sub { !grep { $_->{value} >= time * 1000 } values %{ $etcd->under($etcd->marks_prefix) } });
}

# Each has minted since this moment.
sub all_mint
{
	my ($since) = @_;
	return eventually(40, sub { !grep { !defined $_->first_success_after($since) } @loads });
}

sub hint { my ($node) = @_; return slurp($node->data_dir . '/snowflake_last_mark'); }

# A copy of the files, under another name and with a port of its own, else the same in all.
sub copy_of
{
	my ($name, $node) = @_;
	my $clone = Snowflake::Instance->new($name);
	PostgreSQL::Test::RecursiveCopy::copypath($node->data_dir, $clone->data_dir,
		filterfn => sub { $_[0] ne 'postmaster.pid' });
	chmod 0700, $clone->data_dir;
	$clone->append_conf('postgresql.conf',
		'port = ' . $clone->port . "\nunix_socket_directories = '" . $clone->host . "'\n");
	return $clone;
}

sub check
{
	my ($what, @nodes) = @_;
	my $since = time;
	ok(all_mint($since), "$what: all mint");
	my %numbers = map { $_->stat('worker') => 1 } @nodes;
	is(scalar keys %numbers, scalar @nodes, "$what: with numbers of their own");
	$_->stop for @loads;
	my $found = idcheck(map { $_->id_files } @loads);
	cmp_ok($found->{ids}, '>', 10_000, "$what: $found->{ids} IDs were minted");
	is($found->{duplicates}, 0, "$what: none of them twice");
	return;
}

# --- a base backup ---

load($original);
eventually(20, sub { $loads[0]->succeeded > 20 });
$original->backup('base');
is(-e $original->backup_dir . '/base/snowflake_last_mark', undef, 'a base backup carries no hint');
my $base = Snowflake::Instance->new('base');
$base->init_from_backup($original, 'base', standby => 0);
$base->start;
load($base);
ok($base->wait_state('issuing'), 'an instance from a base backup mints');
check('base backup', $original, $base);
$base->stop;

# --- a copy of the files of a stopped one, started together with it ---

# As long as etcd is frozen both wait for it; then they claim at the same moment. The region's other
# marks are past, so that each has but its hint to show that etcd remembers.
for my $try (1 .. ($ENV{SNOWFLAKE_FULL} ? 10 : 1))
{
	$original->stop;
	my $hint = hint($original);
	like($hint, qr/^\d+ \d{13} \d+ \d+ -?\d+$/, "try $try: a clean stop leaves a hint");
	my $copy = copy_of("copy$try", $original);
	is(hint($copy), $hint, "try $try: the copy has it too");
	all_marks_past();
	$etcd->pause;
	$_->start for $original, $copy;
	@loads = ();
	load($original, $copy);
	my $together = time;
	$etcd->resume;
	ok(all_mint($together), "try $try: started together, both mint");
	my $slowest = (sort { $b <=> $a } map { $_->first_success_after($together) } @loads)[0];
	cmp_ok($slowest, '<', 10, sprintf('try %d: without a pause, since etcd still has what the hint says (%.1f s)', $try, $slowest));
	check("try $try", $original, $copy);
	$copy->stop('immediate');
	# Of which number it was, and until when, is in etcd alone.
	eventually(30, sub { (my @claimed = $etcd->claimed) == 1 });
}

# --- started while the original is stopped, which then comes back ---

$original->stop;
my $before = hint($original);
my $copy = copy_of('late', $original);
@loads = ();
$copy->start;
load($copy);
ok($copy->wait_state('issuing', 40), 'a copy mints while the original is stopped');
is(hint($original), $before, 'the original has its hint still, which is no longer true');
$original->start;
load($original);
ok($original->wait_state('issuing', 40), 'the original comes back, and mints');
check('late copy', $original, $copy);

# --- a copy whose hint is no longer true, when nobody else is there ---

@loads = ();
$original->stop;
my $old = copy_of('old', $original);
my ($number, $mark) = split / /, hint($old);
$original->start;
load($original);
$original->wait_state('issuing', 40);
eventually(5, sub { (my @calls = $loads[0]->succeeded) > 100 });
# Both die: their numbers stay claimed, their marks pass. Of the hint's number more was used than it says.
$_->kill9 for $original, $copy;
$etcd->put($etcd->mark_key($number), $mark + 1) if $etcd->mark($number) eq $mark;
all_marks_past();
$old->start;
load($old);
my $row = $old->wait_state('quarantined|issuing', 20);
is($row->{state}, 'quarantined', 'an old hint proves nothing: the copy pauses');
ok($old->wait_state('issuing', 30), 'and mints after that');
eventually(10, sub { $loads[-1]->succeeded > 20 });
$_->stop for @loads;
is(idcheck(map { $_->id_files } @loads)->{duplicates}, 0, 'no ID twice');

done_testing();
