# An etcd whose members' links to each other can be cut, that can be restored from a backup, and that
# answers through whichever member has an answer.

package Drills::Etcd;

use strict;
use warnings;

use Digest::SHA qw(sha1_hex);
use List::Util qw(shuffle);
use MIME::Base64 qw(encode_base64 decode_base64);

use Snowflake::Etcd;
use Snowflake::Process qw(free_port);
use Drills::Peers;

our @ISA = ('Snowflake::Etcd');

sub new
{
	my ($class, $members) = @_;
	my $self = $class->SUPER::new(members => $members);
	$self->{token} = "test-$self->{members}[0]{port}";
	my @peers;
	for my $member (@{ $self->{members} })
	{
		my ($port) = $member->{peer} =~ /(\d+)$/;
		my $target = free_port();
		$member->{listen} = "http://127.0.0.1:$target";
		# As etcd makes it up.
		$member->{id} = substr(sha1_hex($member->{peer} . $self->{token}), 0, 16) =~ s/^0+//r;
		push @peers, { port => $port, target => $target, id => $member->{id} };
	}
	$self->{peers} = Drills::Peers->new(@peers);
	return $self;
}

sub start_member
{
	my ($self, $at) = @_;
	local $self->{args} = [ '--listen-peer-urls', $self->{members}[$at]{listen} ];
	return $self->SUPER::start_member($at);
}

sub cut_peers { my ($self, @pairs) = @_; return $self->{peers}->cut(@pairs); }

# Whether the proxies know the members by their true ids.
sub ids_are_right
{
	my ($self) = @_;
	my $list = $self->ask('/v3/cluster/member/list', {}) or return 0;
	my %ids = map { (sprintf '%x', $_->{ID}) => 1 } @{ $list->{members} };
	return !grep { !$ids{ $_->{id} } } @{ $self->{members} };
}

# The answer of a member that has one.
sub ask
{
	my ($self, $path, $body) = @_;
	for my $at (shuffle $self->all)
	{
		my $answer = $self->call($path, $body, member => $at, timeout => 0.5);
		return $answer if $answer;
	}
	return undef;
}

sub put_quickly
{
	my ($self, $key, $value) = @_;
	return $self->ask('/v3/kv/put', { key => encode_base64($key, ''), value => encode_base64($value, '') });
}
sub del_quickly { my ($self, $key) = @_; return $self->ask('/v3/kv/deleterange', { key => encode_base64($key, '') }); }
sub revoke_quickly { my ($self, $lease) = @_; return $self->ask('/v3/lease/revoke', { ID => $lease }); }

# (number, lease) of a holder's claim; nothing when it has none.
sub claim_of
{
	my ($self, $holder) = @_;
	my $prefix = $self->workers_prefix;
	my $answer = $self->ask('/v3/kv/range',
		{ key => encode_base64($prefix, ''), range_end => encode_base64("$prefix~", '') }) or return;
	for my $kv (@{ $answer->{kvs} // [] })
	{
		next unless decode_base64($kv->{value}) eq $holder;
		my ($number) = decode_base64($kv->{key}) =~ /(\d+)$/;
		return ($number + 0, $kv->{lease});
	}
	return;
}

# All numbers but the first few belong to others, who never give them back.
sub crowd
{
	my ($self, $left) = @_;
	my @puts = map {
		{ request_put => { key => encode_base64($self->claim_key($_), ''), value => encode_base64('others', '') } }
	} $left .. 127;
	return $self->ask('/v3/kv/txn', { success => \@puts });
}

sub leader_now
{
	my ($self) = @_;
	for my $at (shuffle $self->all)
	{
		my $status = $self->call('/v3/maintenance/status', {}, member => $at, timeout => 0.5) or next;
		my $leader = sprintf '%x', $status->{leader} // 0;
		my ($found) = grep { $self->{members}[$_]{id} eq $leader } $self->all;
		return $found if defined $found;
	}
	return 0;
}

# To a file, as of some moment within the call.
sub back_up { my ($self, $file) = @_; $self->ctl('snapshot', 'save', $file); return; }

# Ends all members without a warning, and brings them back as of a backup.
sub restore
{
	my ($self, $backup) = @_;
	$self->kill9;
	for my $at ($self->all)
	{
		system('bash', '-c', $self->restore_command($at, $backup)) == 0 or die "no restore from $backup";
		$self->start_member($at);
	}
	$self->wait_healthy;
	return;
}

# The shell command that replaces a member's data by a backup, or by nothing.
sub restore_command
{
	my ($self, $at, $backup) = @_;
	my $member = $self->{members}[$at];
	my $cluster = join(',', map { "$_->{name}=$_->{peer}" } @{ $self->{members} });
	my $data = "$self->{dir}/$member->{name}";
	return "rm -rf $data" unless $backup;
	return "rm -rf $data; ETCDCTL_API=3 etcdctl snapshot restore $backup --name $member->{name}"
	  . " --data-dir $data --initial-cluster $cluster --initial-cluster-token $self->{token}"
	  . " --initial-advertise-peer-urls $member->{peer}";
}

1;
