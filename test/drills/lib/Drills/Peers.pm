# The links between the members of an etcd cluster, each of which can be cut in silence, one by one:
# a proxy before every member's peer port. A member's own connections go through it as well, and who
# has made one is told by the header X-Server-From of its first request.

package Drills::Peers;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use Socket;

# members: [ { port: to listen on, target: port of the member, id: hexadecimal }, ... ]
sub new
{
	my ($class, @members) = @_;
	require Snowflake::Process;
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
	my $process = Snowflake::Process->spawn(
		[ $^X, (map { "-I$_" } @INC), '-MDrills::Peers', '-e', 'Drills::Peers::serve(@ARGV)', fileno($theirs), encode_json(\@members) ],
		log => "$ENV{DRILLS_RUN}/peers.log",
		keep => $theirs);
	close $theirs;
	$ours->autoflush(1);
	return bless { control => $ours, process => $process }, $class;
}

# From now on nothing passes between each of these pairs of members, [ 0, 2 ] for example, in either
# direction. All other pairs are whole.
sub cut
{
	my ($self, @pairs) = @_;
	print { $self->{control} } encode_json(\@pairs) . "\n";
	defined $self->{control}->getline or die 'the proxy between the members has died';
	return;
}

# --- the proxy's side ---

my (@members, $select, %cut);
my %connections;    # fileno of either side => { from, to, client, server, head }

sub serve
{
	my ($control_fd, $members) = @_;
	@members = @{ decode_json($members) };
	$SIG{PIPE} = 'IGNORE';
	open(my $control, '+<&=', $control_fd) or die "control: $!";
	$control->autoflush(1);
	$select = IO::Select->new($control);
	my %listeners;
	for my $to (0 .. $#members)
	{
		my $listener = IO::Socket::INET->new(
			LocalAddr => '127.0.0.1', LocalPort => $members[$to]{port}, Listen => 64, ReuseAddr => 1)
		  or die "listen: $!";
		$listeners{ fileno $listener } = [ $listener, $to ];
		$select->add($listener);
	}
	while (1)
	{
		for my $handle ($select->can_read)
		{
			my $number = fileno $handle // next;
			if ($handle == $control)
			{
				my $line = $control->getline // exit 0;
				%cut = map { ("$_->[0]-$_->[1]" => 1, "$_->[1]-$_->[0]" => 1) } @{ decode_json($line) };
				recut();
				print $control "done\n";
				last;
			}
			elsif (my $listener = $listeners{$number}) { accept_one(@$listener); }
			elsif (my $connection = $connections{$number}) { pass($connection, $handle); }
		}
	}
}

sub accept_one
{
	my ($listener, $to) = @_;
	my $client = $listener->accept or return;
	$client->blocking(0);
	$connections{ fileno $client } = { to => $to, client => $client, head => '' };
	$select->add($client);
	return;
}

# Bytes of a link that is cut are not even read. One that has stood still is no use to anybody.
sub recut
{
	my %seen;
	for my $connection (grep { !$seen{$_}++ } values %connections)
	{
		next unless defined $connection->{from};
		my $is_cut = $cut{"$connection->{from}-$connection->{to}"};
		if ($is_cut && !$connection->{still})
		{
			$select->remove($_) for grep { $_ } @$connection{qw(client server)};
			$connection->{still} = 1;
		}
		elsif (!$is_cut && $connection->{still}) { close_both($connection); }
	}
	return;
}

sub close_both
{
	my ($connection) = @_;
	for my $side (grep { $_ } @$connection{qw(client server)})
	{
		$select->remove($side);
		delete $connections{ fileno $side };
		close $side;
	}
	return;
}

sub pass
{
	my ($connection, $handle) = @_;
	my $got = sysread($handle, my $bytes, 1 << 16);
	return if !defined $got && ($! == EAGAIN || $! == EINTR);
	return close_both($connection) unless $got;
	if (!defined $connection->{from})
	{
		# The first request's head says who it is.
		$connection->{head} .= $bytes;
		my ($id) = $connection->{head} =~ /^X-Server-From: ([0-9a-f]+)\r$/mi;
		return if !defined $id && $connection->{head} !~ /\r\n\r\n/;
		$id //= '';
		($connection->{from}) = grep { $members[$_]{id} eq $id } 0 .. $#members;
		$connection->{from} //= 'somebody';
		my $server = IO::Socket::INET->new(
			PeerAddr => '127.0.0.1', PeerPort => $members[ $connection->{to} ]{target}, Timeout => 2);
		return close_both($connection) unless $server;
		$connection->{server} = $server;
		$connections{ fileno $server } = $connection;
		$select->add($server);
		$bytes = delete $connection->{head};
		if ($cut{"$connection->{from}-$connection->{to}"}) { recut(); return; }
	}
	my $other = $handle == $connection->{client} ? $connection->{server} : $connection->{client};
	$other->blocking(1);
	for (my $sent = 0; $sent < length $bytes;)
	{
		my $more = syswrite($other, $bytes, length($bytes) - $sent, $sent);
		return close_both($connection) unless defined $more;
		$sent += $more;
	}
	$other->blocking(0);
	return;
}

1;
