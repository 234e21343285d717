# A real etcd of one or more members on loopback, and what a test wants to know of it or do to it.

package Snowflake::Etcd;

use strict;
use warnings;

use HTTP::Tiny;
use JSON::PP;
use MIME::Base64 qw(encode_base64 decode_base64);
use Time::HiRes qw(sleep time);

use Snowflake::Certs;
use Snowflake::Process qw(eventually free_port tempdir_abs slurp);
use Snowflake::Proxy;

# members: how many (1). peer_proxies: the members reach each other through proxies, see cut_off.
# tls: a Snowflake::Certs object, or true to have one made; clients must show a certificate then.
# auth: { user, password } of the account that the extension gets; root's password is 'root'.
# args: further arguments of every member.
our @all;    # that were made

sub new
{
	my ($class, %with) = @_;
	push @all, my $self = bless {
		dir => tempdir_abs('etcd'),
		auth => $with{auth},
		args => $with{args} // [],
		prefix => $with{prefix} // '/idgen',
		region => $with{region} // 0,
		http => HTTP::Tiny->new(timeout => 5, proxy => undef, http_proxy => undef),
	}, $class;
	if ($with{tls})
	{
		my $certs = $self->{tls} = ref $with{tls} ? $with{tls} : Snowflake::Certs->new;
		$certs->issue('server', cn => 'etcd', usage => 'serverAuth,clientAuth',
			san => 'IP:127.0.0.1,DNS:localhost');
		$certs->issue('client', usage => 'clientAuth');
	}
	my $scheme = $self->{tls} ? 'https' : 'http';
	for my $at (0 .. ($with{members} // 1) - 1)
	{
		my ($port, $peer_port) = (free_port(), free_port());
		my $member = {
			name => "m$at", port => $port,
			client => "$scheme://127.0.0.1:$port",
			peer => "http://127.0.0.1:$peer_port",
			log => "$self->{dir}/m$at.log",
		};
		$member->{proxy} = Snowflake::Proxy->new($peer_port) if $with{peer_proxies};
		$member->{advertised} = $member->{proxy} ? $member->{proxy}->endpoint : $member->{peer};
		push @{ $self->{members} }, $member;
	}
	return $self;
}

# --- life of the members ---

sub start
{
	my ($self) = @_;
	$self->start_member($_) for $self->all;
	$self->wait_healthy;
	$self->_enable_auth if $self->{auth} && !$self->{auth_enabled};
	return $self;
}

sub stop
{
	my ($self) = @_;
	# All at once: the second of three has no quorum left to say goodbye to.
	$self->signal_member($_, 'TERM') for $self->all;
	$self->stop_member($_) for $self->all;
	return;
}

sub start_member
{
	my ($self, $at) = @_;
	my $member = $self->{members}[$at];
	my @tls;
	if (my $certs = $self->{tls})
	{
		@tls = (
			'--cert-file', $certs->cert('server'), '--key-file', $certs->key('server'),
			'--client-cert-auth', '--trusted-ca-file', $certs->ca);
	}
	$member->{process} = Snowflake::Process->spawn(
		[
			'etcd', '--name', $member->{name}, '--data-dir', "$self->{dir}/$member->{name}",
			'--listen-client-urls', $member->{client}, '--advertise-client-urls', $member->{client},
			'--listen-peer-urls', $member->{peer}, '--initial-advertise-peer-urls', $member->{advertised},
			'--initial-cluster', join(',', map { "$_->{name}=$_->{advertised}" } @{ $self->{members} }),
			'--initial-cluster-token', "test-$self->{members}[0]{port}",
			'--auto-compaction-mode', 'revision', '--auto-compaction-retention', '100000',
			'--logger', 'zap', '--log-level', 'error', '--log-outputs', 'stderr',
			@tls, @{ $self->{args} }
		],
		log => $member->{log});
	return;
}

sub signal_member { my ($self, $at, $signal) = @_; $self->{members}[$at]{process}->signal($signal); return; }
sub stop_member { my ($self, $at) = @_; $self->{members}[$at]{process}->stop('TERM', 15); return; }
sub kill9_member { my ($self, $at) = @_; $self->{members}[$at]{process}->stop('KILL'); return; }
sub pause_member { my ($self, $at) = @_; $self->signal_member($at, 'STOP'); return; }
sub resume_member { my ($self, $at) = @_; $self->signal_member($at, 'CONT'); return; }
sub pause { my ($self) = @_; $self->pause_member($_) for $self->all; return; }
sub resume { my ($self) = @_; $self->resume_member($_) for $self->all; return; }
sub kill9 { my ($self) = @_; $self->kill9_member($_) for $self->all; return; }

# The mode of the proxy before a member's peer address. With 'blackhole' its peers hear nothing of it,
# while it hears them.
sub cut_off { my ($self, $at, $mode) = @_; $self->{members}[$at]{proxy}->mode($mode); return; }

sub all { my ($self) = @_; return 0 .. $#{ $self->{members} }; }
sub endpoint { my ($self, $at) = @_; return $self->{members}[ $at // 0 ]{client}; }
sub port { my ($self, $at) = @_; return $self->{members}[ $at // 0 ]{port}; }
sub endpoints { my ($self) = @_; return join(',', map { $_->{client} } @{ $self->{members} }); }

sub wait_healthy
{
	my ($self, $seconds) = @_;
	for my $at ($self->all)
	{
		eventually(
			$seconds // 60,
			sub {
				if ($self->{tls})
				{
					my ($ok) = $self->_ctl([ 'endpoint', 'health' ], member => $at, quiet => 1);
					return $ok;
				}
				my $answer = $self->{http}->get($self->endpoint($at) . '/health');
				return $answer->{success} && $answer->{content} =~ /"health"\s*:\s*"?true/;
			})
		  or die "etcd member $at is not healthy: " . slurp($self->{members}[$at]{log});
	}
	return;
}

# The member that leads, as seen by those that answer; undef while there is none. not: a former
# leader that does not count.
sub leader
{
	my ($self, %with) = @_;
	for my $at ($self->all)
	{
		next if defined $with{not} && $at == $with{not};
		my $status = $self->call('/v3/maintenance/status', {}, member => $at, timeout => 1) or next;
		next unless $status->{leader};
		for my $candidate ($self->all)
		{
			next if defined $with{not} && $candidate == $with{not};
			my $other = $self->call('/v3/maintenance/status', {}, member => $candidate, timeout => 1)
			  or next;
			return $candidate if $other->{header}{member_id} eq $status->{leader};
		}
	}
	return undef;
}

sub wait_leader
{
	my ($self, %with) = @_;
	my $leader;
	eventually(30, sub { $leader = $self->leader(%with); defined $leader }) or die 'etcd has no leader';
	return $leader;
}

# --- the JSON gateway, for what etcdctl is too slow or too clever for (without TLS and auth) ---

# Returns the decoded answer; undef when there was none or it was an error.
sub call
{
	my ($self, $path, $body, %with) = @_;
	my $http = $with{timeout} ? HTTP::Tiny->new(timeout => $with{timeout}) : $self->{http};
	my $answer = $http->post($self->endpoint($with{member}) . $path, { content => encode_json($body) });
	return undef unless $answer->{success};
	return decode_json($answer->{content});
}

sub b64 { return encode_base64($_[0], ''); }

# All values that a key has had, oldest first: from etcd's own history, so no moment is missed.
sub history
{
	my ($self, $key) = @_;
	my @values;
	my %at;
	while (1)
	{
		my $answer = $self->call('/v3/kv/range', { key => b64($key), %at })
		  or die "no history of $key (compacted?)";
		my $kv = ($answer->{kvs} // [])->[0] or last;
		unshift @values, decode_base64($kv->{value});
		last if $kv->{mod_revision} == $kv->{create_revision};
		$at{revision} = '' . ($kv->{mod_revision} - 1);
	}
	return @values;
}

# --- keys ---

sub workers_prefix { my ($self) = @_; return "$self->{prefix}/r$self->{region}/workers/"; }
sub marks_prefix { my ($self) = @_; return "$self->{prefix}/r$self->{region}/marks/"; }
sub claim_key { my ($self, $worker) = @_; return $self->workers_prefix . sprintf('%03d', $worker); }
sub mark_key { my ($self, $worker) = @_; return $self->marks_prefix . sprintf('%03d', $worker); }

sub get
{
	my ($self, $key) = @_;
	my $kv = ($self->_range($key)->{kvs} // [])->[0] or return undef;
	return decode_base64($kv->{value} // '');
}

# By the gateway where it needs no credentials: much faster than a program for each look.
sub _range
{
	my ($self, $key, $end) = @_;
	return $self->_json('get', $key, defined $end ? $end : ()) if $self->{tls} || $self->{auth_enabled};
	for my $member ($self->all)
	{
		my $answer = $self->call('/v3/kv/range',
			{ key => b64($key), defined $end ? (range_end => b64($end)) : () }, member => $member);
		return $answer if $answer;
	}
	die "etcd does not answer a look at $key";
}

sub put
{
	my ($self, $key, $value, $lease) = @_;
	$self->ctl('put', $key, $value, defined $lease ? (sprintf '--lease=%x', $lease) : ());
	return;
}

sub del { my ($self, $key, @options) = @_; $self->ctl('del', $key, @options); return; }

sub put_many
{
	my ($self, %values) = @_;
	for my $key (sort keys %values)
	{
		$self->call('/v3/kv/put', { key => b64($key), value => b64($values{$key}) })
		  or die "could not put $key";
	}
	return;
}

# { key => { value, lease, mod_revision, create_revision } } of all keys under a prefix. Lease ids are decimal.
sub under
{
	my ($self, $prefix) = @_;
	my $answer = $self->_range($prefix, substr($prefix, 0, -1) . chr(ord(substr($prefix, -1)) + 1));
	return {
		map {
			decode_base64($_->{key}) => {
				value => decode_base64($_->{value} // ''),
				lease => $_->{lease} // 0,
				mod_revision => $_->{mod_revision},
				create_revision => $_->{create_revision}
			}
		} @{ $answer->{kvs} // [] }
	};
}

# The worker numbers that are claimed, lowest first.
sub claimed
{
	my ($self) = @_;
	return map { /(\d+)$/ ? $1 + 0 : () } sort keys %{ $self->under($self->workers_prefix) };
}

sub claim { my ($self, $worker) = @_; return $self->under($self->claim_key($worker))->{ $self->claim_key($worker) }; }
sub mark { my ($self, $worker) = @_; return $self->get($self->mark_key($worker)); }

# etcdctl pads them with zeros.
sub lease_list { my ($self) = @_; return map { s/^0+//r } grep { /^[0-9a-f]{8,}$/ } split /\n/, $self->ctl('lease', 'list'); }

# Leases are decimal numbers here as everywhere but in etcdctl.
sub lease_grant
{
	my ($self, $seconds) = @_;
	my ($id) = $self->ctl('lease', 'grant', $seconds) =~ /lease ([0-9a-f]+)/ or die 'no lease granted';
	no warnings 'portable';
	return hex($id);
}

sub lease_revoke { my ($self, $lease) = @_; $self->ctl('lease', 'revoke', sprintf('%x', $lease)); return; }

# --- etcdctl ---

sub ctl
{
	my ($self, @arguments) = @_;
	my ($ok, $out, $err) = $self->_ctl(\@arguments);
	die "etcdctl @arguments: $err$out" unless $ok;
	return $out;
}

sub _json { my ($self, @arguments) = @_; return decode_json($self->ctl(@arguments, '-w', 'json')); }

sub _ctl
{
	my ($self, $arguments, %with) = @_;
	local $ENV{ETCDCTL_API} = 3;
	my @global = ('--endpoints', defined $with{member} ? $self->endpoint($with{member}) : $self->endpoints);
	if (my $certs = $self->{tls})
	{
		push @global, '--cacert', $certs->ca, '--cert', $certs->cert('client'), '--key', $certs->key('client');
	}
	push @global, '--user', 'root:root' if $self->{auth_enabled};
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([ 'etcdctl', @global, @$arguments ], '>', \$out, '2>', \$err);
	return ($ok, $out, $err);
}

sub _enable_auth
{
	my ($self) = @_;
	my ($user, $password) = @{ $self->{auth} }{qw(user password)};
	$self->ctl('user', 'add', 'root:root');
	$self->ctl('user', 'grant-role', 'root', 'root') if eval { $self->ctl('role', 'add', 'root') };
	$self->ctl('role', 'add', 'idgen');
	$self->ctl('role', 'grant-permission', '--prefix=true', 'idgen', 'readwrite', "$self->{prefix}/");
	$self->ctl('user', 'add', "$user:$password");
	$self->ctl('user', 'grant-role', $user, 'idgen');
	$self->ctl('auth', 'enable');
	$self->{auth_enabled} = 1;
	return;
}

sub set_password
{
	my ($self, $user, $password) = @_;
	local $ENV{ETCDCTL_API} = 3;
	my $certs = $self->{tls};
	my @global = ('--endpoints', $self->endpoints, '--user', 'root:root');
	push @global, '--cacert', $certs->ca, '--cert', $certs->cert('client'), '--key', $certs->key('client')
	  if $certs;
	my ($in, $out, $err) = ("$password\n", '', '');
	IPC::Run::run([ 'etcdctl', @global, 'user', 'passwd', $user, '--interactive=false' ],
		'<', \$in, '>', \$out, '2>', \$err)
	  or die "etcdctl user passwd: $err";
	return;
}

1;
