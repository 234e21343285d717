# A TCP proxy in front of an etcd endpoint that lies, stalls and cuts on demand. It runs as a process
# of its own; the test switches its mode at any time and the switch is done when the call returns.
#
# Modes for the bytes of a connection:
#   pass            as they come
#   blackhole       connections are accepted and nothing moves; they are cut when the mode ends
#   stall           the same, but what was sent meanwhile is delivered late when the mode ends
#   hang_connect    even the TCP handshake gets no answer
#   refuse          nobody listens
#   reset           every connection is reset
#   drop_replies    requests reach etcd, its answers are thrown away
#   drop_requests   requests are thrown away
#   delay N         each piece of an answer comes N ms late
#   trickle         answers come a byte a second
# Modes for whole HTTP answers:
#   answer KIND [PATH]   see %answers below; PATH is a regex, other requests pass untouched

package Snowflake::Proxy;

use strict;
use warnings;

use Cwd qw(abs_path);
use Errno qw(EINPROGRESS EAGAIN EWOULDBLOCK EINTR);
use File::Basename qw(dirname);
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use MIME::Base64 qw(encode_base64 decode_base64);
use Socket;
use Time::HiRes qw(time);

my $lib = abs_path(dirname(__FILE__) . '/..');

# --- the test's side ---

sub new
{
	my ($class, $target_port, %with) = @_;
	require Snowflake::Process;
	my $port = Snowflake::Process::free_port();
	socketpair(my $ours, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die "socketpair: $!";
	my $process = Snowflake::Process->spawn(
		[
			$^X, "-I$lib", '-MSnowflake::Proxy', '-e', 'Snowflake::Proxy::serve(@ARGV)',
			fileno($theirs), $port, $target_port
		],
		log => $with{log} // Snowflake::Process::log_file("proxy_$port"),
		keep => $theirs);
	close $theirs;
	my $self = bless { port => $port, control => $ours, process => $process, scheme => $with{scheme} // 'http' }, $class;
	$self->mode('pass');
	return $self;
}

sub port { return $_[0]->{port}; }
sub endpoint { my ($self) = @_; return "$self->{scheme}://127.0.0.1:$self->{port}"; }
sub mode { my ($self, @mode) = @_; return $self->_tell({ mode => \@mode }); }

# { connections, requests, answered }: since the last switch of the mode; the last two count
# in the mode 'answer' only, answered being those that got the hostile answer.
sub counts { my ($self) = @_; return $self->_tell({}); }

sub stop { my ($self) = @_; $self->{process}->stop('KILL'); return; }

sub _tell
{
	my ($self, $message) = @_;
	$self->{control}->syswrite(encode_json($message) . "\n") or die "proxy: $!";
	my $line = $self->{control}->getline // die 'the proxy has died';
	return decode_json($line);
}

# --- the proxy's side ---

my ($port, $target, $listener, $control, @fillers);
my @mode = ('pass');
my %connections;    # fileno of either side => connection
my $select;
my %counts;

sub serve
{
	my ($control_fd, @ports) = @_;
	($port, $target) = @ports;
	$SIG{PIPE} = 'IGNORE';
	open($control, '+<&=', $control_fd) or die "control: $!";
	$control->autoflush(1);
	$select = IO::Select->new($control);
	listen_again();
	while (1)
	{
		my $due = flush_due();
		my $writers = IO::Select->new;
		if ($mode[0] !~ /^(?:blackhole|stall)$/)
		{
			$writers->add(map { $_->{client} // () } grep { length $_->{out} } unique());
		}
		my ($readable, $writable) = IO::Select->select($select, $writers, undef, $due);
		write_some($_) for map { $connections{ fileno $_ } // () } @{ $writable // [] };
		for my $handle (@{ $readable // [] })
		{
			if ($handle == $control) { obey(); last; }
			if ($listener && $handle == $listener) { accept_one(); next; }
			my $connection = $connections{ fileno $handle // -1 } or next;
			read_some($connection, $handle);
		}
	}
}

sub unique
{
	my %seen;
	return grep { !$seen{$_}++ } values %connections;
}

sub listen_again
{
	stop_listening();
	$listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 64, ReuseAddr => 1)
	  or die "listen: $!";
	$select->add($listener);
	return;
}

sub stop_listening
{
	return unless $listener;
	$select->remove($listener);
	close $listener;
	undef $listener;
	@fillers = ();
	return;
}

sub obey
{
	my $line = $control->getline // exit 0;
	my $message = decode_json($line);
	switch(@{ $message->{mode} }) if $message->{mode};
	print $control encode_json({ connections => 0, requests => 0, answered => 0, %counts }) . "\n";
	return;
}

sub switch
{
	my (@new) = @_;
	my $old = $mode[0];
	@mode = @new;
	%counts = ();
	# Between bytes and whole answers no connection is carried over, and none survives a blackhole.
	my $cut = $old =~ /^(?:answer|blackhole|trickle)$/ || $new[0] =~ /^(?:answer|refuse|reset)$/;
	if ($cut) { cut($_, $new[0] =~ /^(?:refuse|reset)$/) for unique(); }
	if ($new[0] eq 'refuse')
	{
		stop_listening();
	}
	elsif ($new[0] eq 'hang_connect')
	{
		# A queue of length 0 that is full: the kernel drops further SYNs.
		cut($_) for unique();
		stop_listening();
		$listener = IO::Socket::INET->new(
			LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 1, ReuseAddr => 1)
		  or die "listen: $!";
		listen($listener, 0);
		for (1 .. 3)
		{
			socket(my $filler, PF_INET, SOCK_STREAM, 0);
			$filler->blocking(0);
			connect($filler, pack_sockaddr_in($port, INADDR_LOOPBACK));
			push @fillers, $filler;
		}
	}
	elsif (!$listener || $old eq 'hang_connect')
	{
		listen_again();
	}
	# Handles whose bytes must not move are not even read.
	for my $connection (unique())
	{
		for my $side (grep { $_ } @$connection{qw(client server)})
		{
			$new[0] =~ /^(?:blackhole|stall)$/ ? $select->remove($side) : $select->add($side);
		}
	}
	return;
}

sub accept_one
{
	my $client = $listener->accept or return;
	$counts{connections}++;
	if ($mode[0] eq 'reset')
	{
		setsockopt($client, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
		close $client;
		return;
	}
	$client->blocking(0);
	my $connection = { client => $client, out => '', late => [], in => '' };
	$connections{ fileno $client } = $connection;
	$select->add($client) unless $mode[0] =~ /^(?:blackhole|stall)$/;
	return if $mode[0] =~ /^(?:answer|blackhole)$/;
	my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $target, Timeout => 2);
	return cut($connection) unless $server;
	$server->blocking(0);
	$connection->{server} = $server;
	$connections{ fileno $server } = $connection;
	$select->add($server) unless $mode[0] eq 'stall';
	return;
}

sub cut
{
	my ($connection, $reset) = @_;
	for my $side (grep { $_ } @$connection{qw(client server)})
	{
		$select->remove($side);
		delete $connections{ fileno $side };
		setsockopt($side, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0)) if $reset;
		close $side;
	}
	delete @$connection{qw(client server)};
	return;
}

sub read_some
{
	my ($connection, $handle) = @_;
	my $got = sysread($handle, my $bytes, 65536);
	return if !defined $got && ($! == EAGAIN || $! == EINTR);
	my $from_client = $connection->{client} && $handle == $connection->{client};
	unless ($got)
	{
		# etcd's last bytes may still be on their way to a slow client.
		return cut($connection) if $from_client || !(length $connection->{out} || @{ $connection->{late} });
		$select->remove($handle);
		$connection->{ending} = 1;
		return;
	}
	if ($mode[0] eq 'answer')
	{
		$connection->{in} .= $bytes;
		answer_requests($connection);
	}
	elsif ($from_client)
	{
		return if $mode[0] eq 'drop_requests';
		# Requests are small; etcd on loopback takes them at once.
		my $server = $connection->{server} or return;
		$server->blocking(1);
		syswrite($server, $bytes);
		$server->blocking(0);
	}
	elsif ($mode[0] eq 'drop_replies')
	{
		return;
	}
	elsif ($mode[0] eq 'delay')
	{
		push @{ $connection->{late} }, [ time + $mode[1] / 1000, $bytes ];
	}
	elsif ($mode[0] eq 'trickle')
	{
		my $at = @{ $connection->{late} } ? $connection->{late}[-1][0] : time;
		push @{ $connection->{late} }, [ ++$at, $_ ] for split //, $bytes;
	}
	else
	{
		$connection->{out} .= $bytes;
		write_some($connection);
	}
	return;
}

sub write_some
{
	my ($connection) = @_;
	return unless $connection->{client} && length $connection->{out};
	return if $mode[0] =~ /^(?:blackhole|stall)$/;
	my $sent = syswrite($connection->{client}, $connection->{out}, 1 << 16);
	if (!defined $sent)
	{
		return if $! == EAGAIN || $! == EINTR;
		return cut($connection);
	}
	substr($connection->{out}, 0, $sent, '');
	if ($connection->{ending} && !length $connection->{out} && !@{ $connection->{late} }) { cut($connection); }
	return;
}

# Moves what is due; returns the seconds until more is.
sub flush_due
{
	my $next;
	my $now = time;
	for my $connection (unique())
	{
		my $late = $connection->{late};
		$connection->{out} .= (shift @$late)->[1] while @$late && $late->[0][0] <= $now;
		write_some($connection);
		next unless @$late;
		my $wait = $late->[0][0] - $now;
		$next = $wait if !defined $next || $wait < $next;
	}
	return $next;
}

# --- whole answers ---

sub http_answer
{
	my ($status, $type, $body, @headers) = @_;
	return join("\r\n", "HTTP/1.1 $status", "Content-Type: $type", 'Content-Length: ' . length $body, @headers, '', '')
	  . $body;
}

sub json_answer { my ($body, @headers) = @_; return http_answer('200 OK', 'application/json', $body, @headers); }

sub error_answer
{
	my ($status, $code, $text) = @_;
	return http_answer($status, 'application/json',
		encode_json({ error => $text, message => $text, code => $code }));
}

# Replaces the value of every mark in a true answer.
sub with_marks
{
	my ($real, $value) = @_;
	my $doctor;
	$doctor = sub {
		my ($node) = @_;
		if (ref $node eq 'ARRAY') { $doctor->($_) for @$node; }
		elsif (ref $node eq 'HASH')
		{
			$doctor->($_) for values %$node;
			if (defined $node->{key} && !ref $node->{key} && decode_base64($node->{key}) =~ m{/marks/})
			{
				$node->{value} = encode_base64(ref $value ? $value->($node->{value}) : $value, '');
			}
		}
	};
	my $json = decode_json($real->{content});
	$doctor->($json);
	return json_answer(encode_json($json));
}

# Replaces or removes (undef) a field wherever it is in a true answer.
sub with_field
{
	my ($real, $field, @values) = @_;
	my $doctor;
	$doctor = sub {
		my ($node) = @_;
		if (ref $node eq 'ARRAY') { $doctor->($_) for @$node; return; }
		return unless ref $node eq 'HASH';
		$doctor->($_) for values %$node;
		return unless exists $node->{$field};
		if (@values) { $node->{$field} = $values[0]; }
		else { delete $node->{$field}; }
	};
	my $json = decode_json($real->{content});
	$doctor->($json);
	return json_answer(encode_json($json));
}

# Each is given etcd's true answer ({ status, content }) and returns the bytes to send instead, and
# whether the connection ends with them. Those marked 'canned' never ask etcd.
my %answers = (
	no_ttl => sub { with_field($_[0], 'TTL') },
	ttl_zero => sub { with_field($_[0], 'TTL', '0') },
	ttl_text => sub { with_field($_[0], 'TTL', 'soon') },
	no_lease_id => sub { with_field($_[0], 'ID') },
	huge_lease_id => sub { with_field($_[0], 'ID', '99999999999999999999999') },
	negative_lease_id => sub { with_field($_[0], 'ID', '-5') },
	not_succeeded_text => sub { with_field($_[0], 'succeeded', 'yes') },
	no_responses => sub { with_field($_[0], 'responses') },
	responses_object => sub { with_field($_[0], 'responses', { a => 1 }) },
	kvs_null => sub { with_field($_[0], 'kvs', undef) },
	no_header => sub { with_field($_[0], 'header') },
	revision_text => sub { with_field($_[0], 'revision', 'never') },
	key_not_base64 => sub { with_field($_[0], 'key', '!!! no base64 !!!') },
	mark_text => sub { with_marks($_[0], 'not a number') },
	mark_empty => sub { with_marks($_[0], '') },
	mark_short => sub { with_marks($_[0], '123') },
	mark_day_ahead => sub { with_marks($_[0], int(time * 1000) + 86_400_000 + 60_000) },
	mark_last => sub { with_marks($_[0], '9999999999999') },
	mark_negative => sub { with_marks($_[0], '-767225600000') },
	half_body => sub {
		my $body = $_[0]->{content};
		my $head = json_answer($body);
		return (substr($head, 0, length($head) - int(length($body) / 2) - 1), 1);
	},
	cut_headers => sub { ("HTTP/1.1 200 OK\r\nContent-Ty", 1) },
	no_answer => sub { ('', 1) },
	empty_body => sub { json_answer('') },
	empty_object => sub { json_answer('{}') },
	json_null => sub { json_answer('null') },
	json_list => sub { json_answer('[]') },
	json_text => sub { json_answer('"well"') },
	json_twice => sub { json_answer($_[0]->{content} . $_[0]->{content}) },
	garbage_json => sub { json_answer("{\"header\":{\"cluster_id\":\"1\x00\xff\xfe,,,]}") },
	binary => sub { (join('', map { chr(int(rand(256))) } 1 .. 4000), 1) },
	deep_json => sub { json_answer('[' x 200_000) },
	deep_json_closed => sub { json_answer(('{"a":' x 100_000) . '1' . ('}' x 100_000)) },
	html => sub { http_answer('200 OK', 'text/html', "<html><body><h1>It works!</h1></body></html>\n") },
	not_found => sub { http_answer('404 Not Found', 'text/plain; charset=utf-8', "404 page not found\n") },
	redirect => sub {
		http_answer('307 Temporary Redirect', 'text/plain', '', "Location: http://127.0.0.1:$target/v3/kv/txn");
	},
	big_body => sub { json_answer('{"header":{},"padding":"' . ('x' x 10_000_000) . '"}') },
	big_headers => sub { json_answer($_[0]->{content}, map { "X-Padding-$_: " . ('x' x 1000) } 1 .. 2000) },
	endless => sub { ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" . (' ' x 1000), 0) },
	length_lies => sub { ("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n$_[0]->{content}", 0) },
	length_huge => sub { ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n$_[0]->{content}", 1) },
	interim_only => sub { ("HTTP/1.1 100 Continue\r\n\r\n", 0) },
	server_error => sub { error_answer('500 Internal Server Error', 2, 'etcdserver: not a primary lessor') },
	unavailable => sub { error_answer('503 Service Unavailable', 14, 'etcdserver: no leader') },
	no_space => sub { error_answer('429 Too Many Requests', 8, 'etcdserver: mvcc: database space exceeded') },
	bad_token => sub { error_answer('401 Unauthorized', 16, 'etcdserver: invalid auth token') },
	lease_gone => sub { error_answer('404 Not Found', 5, 'etcdserver: requested lease not found') },
	error_is_list => sub { http_answer('400 Bad Request', 'application/json', '{"error":[1,2],"code":{"a":1}}') },
	# Odd, but true: the client must take these.
	chunked_odd => sub {
		my $body = $_[0]->{content};
		my $text = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n";
		my $size = 1;
		while (length $body)
		{
			my $piece = substr($body, 0, $size, '');
			$text .= sprintf("%04X;note=\"odd\"\r\n%s\r\n", length $piece, $piece);
			$size = $size % 7 + 1;
		}
		return $text . "0\r\nX-End: yes\r\n\r\n";
	},
	chunked_bad => sub { ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n$_[0]->{content}\r\n0\r\n\r\n", 1) },
	no_length => sub { ("HTTP/1.0 200 OK\r\n\r\n$_[0]->{content}", 1) },
	truth => sub { json_answer($_[0]->{content}) },
);

sub kinds { return sort keys %answers; }

sub answer_requests
{
	my ($connection) = @_;
	while ($connection->{in} =~ /^(.*?)\r\n\r\n/s)
	{
		my $head = $1;
		my ($length) = $head =~ /^content-length:\s*(\d+)/mi;
		$length //= 0;
		return if length $connection->{in} < length($head) + 4 + $length;
		my $body = substr($connection->{in}, length($head) + 4, $length);
		substr($connection->{in}, 0, length($head) + 4 + $length, '');
		$counts{requests}++;
		my ($method, $path) = $head =~ /^(\S+) (\S+)/;
		my $real = ask_etcd($method, $path, $head, $body);
		return cut($connection) unless $real;
		my ($kind, $only) = @mode[ 1, 2 ];
		my ($text, $end);
		if (defined $only && $path !~ /$only/ || $real->{status} != 200)
		{
			$text = http_answer("$real->{status} $real->{reason}", 'application/json', $real->{content});
		}
		else
		{
			$counts{answered}++;
			($text, $end) = $answers{$kind}->($real);
		}
		$connection->{out} .= $text;
		$connection->{ending} = 1 if $end;
		return cut($connection) if $end && !length $text;
		write_some($connection);
		return unless $connection->{client};
	}
	return;
}

sub ask_etcd
{
	my ($method, $path, $head, $body) = @_;
	require HTTP::Tiny;
	my %headers;
	while ($head =~ /^((?:authorization|content-type|grpc-[\w-]+)):\s*(.*?)\r?$/mig) { $headers{$1} = $2; }
	my $answer = HTTP::Tiny->new(timeout => 3)
	  ->request($method, "http://127.0.0.1:$target$path", { headers => \%headers, content => $body });
	return undef if $answer->{status} == 599;
	return $answer;
}

1;
