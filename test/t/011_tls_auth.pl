# etcd with TLS, client certificates and users.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Certs;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually tempdir_abs);

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

sub renewed
{
	my ($what, $seconds) = @_;
	my $from = time;
	my $good = $node->wait_stat(sub { $_[0]->{renewed_at} > $from }, $seconds // 5);
	ok($good, sprintf('%s (%.1f s)', $what, time - $from)) or diag(explain($node->stat_row));
	return;
}

sub error_like
{
	my ($pattern, $what) = @_;
	my $got = $node->wait_stat(sub { ($_[0]->{last_error} // '') =~ $pattern }, 10);
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
error_like(qr/user "snowflake" is refused.*authentication failed/, 'another password at etcd: the last error says that the user is refused');
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

$certs->issue('named', usage => 'clientAuth', cn => 'somebody');
$node->set(etcd_cert => $certs->cert('named'), etcd_key => $certs->key('named'));
error_like(qr/CommonName|common ?name|CN/i, 'a client certificate with a CN: the last error says that etcd wants none');
$node->set(%right);
renewed('without CN: it renews');

$node->set(etcd_user => 'nobody');
error_like(qr/user "nobody" is refused/, 'a user that is none: the last error names it');
$node->set(etcd_user => '');
error_like(qr/user name is empty|auth/i, 'no user: the last error says that etcd wants one');
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

$row = $node->stat_row;
is($row->{pid}, $pid, 'through all this the background worker lived');
is($row->{claims}, 1, 'and the first claim stood');
$load->stop;
is(scalar(grep { $_->{sqlstate} ne '00000' } $load->calls), 0, 'not one call was refused');
ok(idcheck($load->id_files)->{clean}, 'and all IDs are distinct and in order');
cmp_ok(scalar(() = $node->worker_log(0)), '<', 150, 'the log stays short');
unlike($node->log_since(0), qr/second-secret|first secret/, 'and shows no password');

# --- wrong from the start ---

$node->set(etcd_user => 'snowflake');
password('wrong');
$node->stop('immediate');
$node->start;
error_like(qr/user "snowflake" is refused/, 'a wrong password from the start: the last error says so');
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000:/, 'calls are refused with 55000');
my $took = $node->timed_stop('fast');
cmp_ok($took, '<=', 2, sprintf('and the server stops quickly (%.2f s)', $took));

done_testing();
