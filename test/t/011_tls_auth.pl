# etcd with TLS, client certificates and users.

use strict;
use warnings;

use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Certs;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually free_port tempdir_abs);

my $certs = Snowflake::Certs->new;
my $etcd = Snowflake::Etcd->new(tls => $certs, auth => { user => 'snowflake', password => 'first secret' },
	args => [ '--auth-token-ttl', '2', '--bcrypt-cost', '4' ])->start;

my $dir = tempdir_abs('passwords');
my $password_file = "$dir/password";

sub password
{
	my ($text) = @_;
	unlink $password_file;
	append_to_file($password_file, $text);
	chmod 0600, $password_file;
	return;
}

password("first secret\n");
my $node = Snowflake::Instance->create('a', etcd => $etcd,
	settings => { etcd_user => 'snowflake', etcd_password_file => $password_file, renew_interval => '500ms' });
my $row = $node->wait_issuing;
ok($row, 'with CA, client certificate, user and password the instance mints');
is($etcd->claim($row->{worker})->{value}, 'a', 'etcd has its claim');
my $pid = $row->{pid};

my $last_error_at = '';

sub renewed
{
	my ($what, $seconds) = @_;
	my $from = time;
	my $good = $node->wait_stat(sub { $_[0]->{renewed_at} > $from }, $seconds // 5);
	ok($good, sprintf('%s (%.1f s)', $what, time - $from)) or diag(explain($node->stat_row));
	$last_error_at = $good->{last_error_at} // '' if $good;
	return;
}

# An error that came after what was well last: the view keeps old ones.
sub error_like
{
	my ($pattern, $what) = @_;
	my $got = $node->wait_stat(
		sub { ($_[0]->{last_error} // '') =~ $pattern && $_[0]->{last_error_at} gt $last_error_at }, 10);
	ok($got, $what) or diag($node->stat('last_error'));
	note($got->{last_error}) if $got;
	return;
}

my $load = Snowflake::Load->start($node, interval => 0.01);

# --- tokens end ---

$node->set(renew_interval => '3s');
my $failures = $node->stat('renewal_failures');
sleep 7;    # two beats, each with a token that has ended
renewed('a token that has expired is renewed', 5);
is($node->stat('renewal_failures'), $failures, 'which costs no renewal');
$node->set(renew_interval => '500ms');
renewed('other beats by a reload');
$etcd->stop;
$etcd->start;
renewed('a token that ended with a restart of etcd is renewed', 10);

# --- the password changes ---

$etcd->set_password('snowflake', 'second-secret');
error_like(qr/user "snowflake".*authentication failed/, 'another password at etcd: the last error says so');
unlike($node->stat('last_error'), qr/secret/, 'and shows no password');
password('second-secret');
$node->reload;
renewed('the new password in the file and a reload: it renews');

# --- what is wrong says so, and is mended by a reload ---

my $other = Snowflake::Certs->new;
$other->issue('client', usage => 'clientAuth');
my %right = map { ("etcd_$_" => $node->sql("SHOW snowflake.etcd_$_")) } qw(cacert cert key user endpoints);

$node->set(etcd_cacert => $other->ca);
error_like(qr/certificate/i, 'the wrong CA: the last error speaks of the certificate');
$node->set(%right);
renewed('the right CA again: it renews');

$node->set(etcd_cert => $other->cert('client'), etcd_key => $other->key('client'));
error_like(qr/certificate|alert|SSL|TLS/i, 'a client certificate of another CA: the last error speaks of it');
$node->set(%right);
renewed('the right one again: it renews');

$node->set(etcd_cert => '', etcd_key => '');
error_like(qr/certificate|alert|SSL|TLS/i, 'no client certificate: the last error speaks of it');
$node->set(%right);
renewed('with one again: it renews');

$node->set(etcd_key => $other->key('client'));
error_like(qr/key|certificate/i, 'a key that does not fit: the last error speaks of it');
$node->set(%right);
renewed('with the one that fits: it renews');

my $expiry = time;
$certs->issue('expired', usage => 'clientAuth', days => 0);
$certs->issue('expired_server', usage => 'serverAuth', san => 'IP:127.0.0.1', days => 0);
my $port = free_port();
my $endpoint = "https://127.0.0.1:$port";
my $server = Snowflake::Process->spawn(
	[ 'openssl', 's_server', '-accept', "127.0.0.1:$port", '-www', '-cert', $certs->cert('expired_server'), '-key', $certs->key('expired_server') ]);
ok(eventually(10, sub { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") }), 'a server with a certificate that expires');
eventually(10, sub { time > $expiry + 2 });
$node->set(etcd_endpoints => "$endpoint,$right{etcd_endpoints}");
error_like(qr/\Q$endpoint\E: .*certificate has expired/, 'the certificate of the first endpoint has expired: the last error says so');
$row = $node->stat_row;
renewed('the next endpoint serves');
is($node->stat('endpoint'), $right{etcd_endpoints}, 'as the view shows');
$node->set(etcd_endpoints => $endpoint);
error_like(qr/\Q$endpoint\E: .*certificate has expired/, 'no other endpoint: the last error says the same');
$node->set(%right);
renewed('the right endpoint again: it renews');
$server->stop;

$node->set(etcd_cert => $certs->cert('expired'), etcd_key => $certs->key('expired'));
error_like(qr/certificate|alert/i, 'a client certificate that has expired: the last error speaks of it');
$node->set(%right);
renewed('with one that has not: it renews');

my $encrypted = $certs->path('encrypted.key');
IPC::Run::run([ 'openssl', 'rsa', '-aes256', '-in', $certs->key('client'), '-out', $encrypted, '-passout', 'pass:secret' ], '2>', \my $ignored)
  or BAIL_OUT('no encrypted key');
$node->set(etcd_key => $encrypted);
error_like(qr/private key file: '\Q$encrypted\E'/, 'an encrypted key: the last error names it');
$node->set(%right);
renewed('with one that is not: it renews');

$certs->issue('named', usage => 'clientAuth', cn => 'somebody');
$node->set(etcd_cert => $certs->cert('named'), etcd_key => $certs->key('named'));
error_like(qr/CommonName|common ?name|CN/i, 'a client certificate with a CN: the last error says that etcd wants none');
$node->set(%right);
renewed('without CN: it renews');

$node->set(etcd_user => 'nobody');
error_like(qr/user "nobody".*authentication failed/, 'a user that is none: the last error names it');
$node->set(%right);
renewed('with the right one: it renews');
$node->set(etcd_user => '');
error_like(qr/user name is empty/, 'no user: the last error says that etcd wants one');
$node->set(%right);
renewed('with the user: it renews');

$etcd->ctl('user', 'add', 'stranger:second-secret');
$node->set(etcd_user => 'stranger');
error_like(qr/permission denied/, 'a user without rights on the keys: permission denied');
$node->set(%right);
renewed('with the user that has them: it renews');

unlink $password_file;
$node->reload;
error_like(qr/password.*\Q$password_file\E/, 'no password file: the last error names it');
password("second-secret\n");
$node->reload;
renewed('with the file: it renews');

# --- what is no file, and would block who reads it ---

my $fifo = "$dir/fifo";
POSIX::mkfifo($fifo, 0600) or BAIL_OUT("mkfifo: $!");
for my $name (qw(etcd_password_file etcd_key etcd_cert etcd_cacert))
{
	my $old = $node->sql("SHOW snowflake.$name");
	for my $wrong ($fifo, $dir)
	{
		my $what = "$name is " . ($wrong eq $fifo ? 'a FIFO' : 'a directory');
		my ($out, $err) = $node->try("ALTER SYSTEM SET snowflake.$name = '$wrong'");
		like($err, qr/ERROR:  22023: invalid value for parameter "snowflake\.$name".*DETAIL: .*\Q$wrong\E.*not a regular file/s, "$what: refused, with the reason");
		my $offset = $node->log_offset;
		$node->append_conf('postgresql.auto.conf', "snowflake.$name = '$wrong'");
		$node->reload;
		ok($node->wait_log(qr/"snowflake\.$name".*\n.*DETAIL: .*\Q$wrong\E.*not a regular file/, $offset, 10), "$what: a reload says so in the log");
		is($node->sql("SHOW snowflake.$name"), $old, "$what: the old value stays");
	}
	$node->sql("ALTER SYSTEM SET snowflake.$name = '$old'");
	$node->reload;
}
renewed('none of it keeps it from renewing');

$row = $node->stat_row;
is($row->{pid}, $pid, 'through all this the background worker lived');
is($row->{claims}, 1, 'and the first claim stood');
$load->stop;
is(scalar(grep { $_->{sqlstate} ne '00000' } $load->calls), 0, 'not one call was refused');
ok(idcheck($load->id_files)->{clean}, 'and all IDs are distinct and in order');
cmp_ok(scalar(() = $node->worker_log(0)), '<', 150, 'the log stays short');
unlike($node->log_since(0), qr/second-secret|first secret/, 'and shows no password');

# --- wrong from the start ---

sub stops
{
	my ($what) = @_;
	my $took = $node->timed_stop('fast') // 99;
	cmp_ok($took, '<=', 2, sprintf('%s the server stops quickly (%.2f s)', $what, $took));
	return;
}

$node->set(etcd_user => 'snowflake');
password('wrong');
$node->stop('immediate');
$node->start;
error_like(qr/user "snowflake".*authentication failed/, 'a wrong password from the start: the last error says so');
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000:/, 'calls are refused with 55000');
stops('and');
password("second-secret\n");

for my $wrong ($fifo, $dir)
{
	my $what = $wrong eq $fifo ? 'a FIFO as password file' : 'a directory as password file';
	my $offset = $node->log_offset;
	$node->append_conf('postgresql.auto.conf', "snowflake.etcd_password_file = '$wrong'");
	my $from = time;
	is($node->start(fail_ok => 1), 0, "$what: the server does not start");
	cmp_ok(time - $from, '<=', 5, 'which takes no time');
	like($node->log_since($offset), qr/"snowflake\.etcd_password_file"/, 'and the log names the setting');
}
$node->append_conf('postgresql.auto.conf', "snowflake.etcd_password_file = '$password_file'");

# A check when the value is set sees nothing of what takes the file's place later.
$node->start;
renewed('with the file again it mints', 30);
unlink $password_file;
POSIX::mkfifo($password_file, 0600) or BAIL_OUT("mkfifo: $!");
$node->reload;
error_like(qr/password file "\Q$password_file\E"/, 'a FIFO in the place of the password file, and a reload: the last error names it');
stops('and');
password("second-secret\n");
$node->start;
renewed('with the file again it mints', 30);
my $key = $certs->key('client');
rename($key, "$key.away");
POSIX::mkfifo($key, 0600) or BAIL_OUT("mkfifo: $!");
$node->reload;
error_like(qr/key file "\Q$key\E"/, 'a FIFO in the place of the key: the same');
stops('and');
rename("$key.away", $key);

# Started by hand, so that a prompt would wait for what never comes from its standard input.
$node->append_conf('postgresql.auto.conf', "snowflake.etcd_key = '$encrypted'");
pipe(my $prompt, my $nobody) or BAIL_OUT("pipe: $!");
my $postmaster = fork() // BAIL_OUT("fork: $!");
if ($postmaster == 0)
{
	open(STDIN, '<&', $prompt);
	open(STDOUT, '>>', $node->logfile);
	open(STDERR, '>&', \*STDOUT);
	exec('postgres', '-D', $node->data_dir) or POSIX::_exit(127);
}
$node->{_pid} = $postmaster;
ok(eventually(20, sub { $node->psql('postgres', 'SELECT 1') == 0 }), 'a server that is started from a terminal, with an encrypted key');
error_like(qr/private key file: '\Q$encrypted\E'/, 'the last error names the key: nobody is asked for its password');
unlike($node->log_since(0), qr/pass phrase/i, 'nor by the log');
$node->set(etcd_key => $certs->key('client'));
renewed('with one that is not encrypted and a reload it mints');
$node->set(etcd_key => $encrypted);
error_like(qr/private key file: '\Q$encrypted\E'/, 'and with the encrypted one again it does not');
kill('INT', $postmaster);
my $from = time;
eventually(30, sub { waitpid($postmaster, POSIX::WNOHANG()) == $postmaster }, 0.02);
cmp_ok(time - $from, '<=', 2, sprintf('and the server stops quickly (%.2f s)', time - $from));
$node->{_pid} = undef;

done_testing();
