# Wrong settings: a message that names the setting, and never a server that mints wrongly.

use strict;
use warnings;

use Test::More;

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Process qw(eventually tempdir_abs);

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
my $before = $node->wait_issuing;
my $dir = tempdir_abs('files');
append_to_file("$dir/unreadable", 'x');
chmod 0000, "$dir/unreadable";

# --- on reload: the old value stays in force ---

my @reloaded = (
	[ etcd_endpoints => '127.0.0.1:2379' ],
	[ etcd_endpoints => 'ftp://127.0.0.1:2379' ],
	[ etcd_endpoints => 'http://' ],
	[ etcd_endpoints => 'http://127.0.0.1:0' ],
	[ etcd_endpoints => 'http://127.0.0.1:65536' ],
	[ etcd_endpoints => 'http://127.0.0.1:port' ],
	[ etcd_endpoints => 'http://127.0.0.1:2379,' ],
	[ etcd_endpoints => 'http://127.0.0.1:2379,,http://127.0.0.1:2380' ],
	[ etcd_endpoints => 'http://127.0.0.1:2379/v3' ],
	[ etcd_endpoints => 'http://user:secret@127.0.0.1:2379' ],
	[ etcd_endpoints => 'http://127.0.0.1 :2379' ],
	[ etcd_cacert => '/nonexistent/ca.crt' ],
	[ etcd_cert => "$dir/unreadable" ],
	[ etcd_key => "$dir/unreadable" ],
	[ etcd_password_file => '/nonexistent/password' ],
	[ renew_interval => '0' ],
	[ renew_interval => '-1s' ],
	[ max_wait => '-1' ],
	[ max_clock_error => '-1' ],
	[ on_standby => 'perhaps' ],
);
for my $case (@reloaded)
{
	my ($name, $value) = @$case;
	my $offset = $node->log_offset;
	my $old = $node->sql("SHOW snowflake.$name");
	$node->adjust_conf('postgresql.conf', "snowflake.$name", "'$value'") if $name eq 'etcd_endpoints' || $name eq 'max_clock_error';
	$node->append_conf('postgresql.conf', "snowflake.$name = '$value'") unless $name eq 'etcd_endpoints' || $name eq 'max_clock_error';
	$node->reload;
	ok($node->wait_log(qr/(?:invalid value for parameter|outside the valid range for parameter|requires a Boolean value).*|.*"snowflake\.$name"/, $offset, 10)
		  && $node->log_since($offset) =~ /"snowflake\.$name"/,
		"$name = '$value': the log names the setting");
	is($node->sql("SHOW snowflake.$name"), $old, "$name = '$value': the old value stays");
	$node->adjust_conf('postgresql.conf', "snowflake.$name", $name eq 'etcd_endpoints' ? "'" . $etcd->endpoints . "'" : $name eq 'max_clock_error' ? "'0'" : undef);
}
$node->reload;
my $row = $node->stat_row;
is($row->{state}, 'issuing', 'through all this the instance mints');
is($row->{$_}, $before->{$_}, "its $_ is the same") for qw(worker claims pid);

# --- what can only be set at start ---

for my $name (qw(etcd_prefix region holder lease_ttl reserve))
{
	my ($out, $err) = $node->try("SET snowflake.$name = '1'");
	like($err, qr/ERROR:  55P02: parameter "snowflake\.$name" cannot be changed without restarting the server/, "$name needs a restart");
}
my ($out, $err) = $node->try("SET snowflake.no_such_setting = 1");
like($err, qr/ERROR:.*snowflake\.no_such_setting/, 'a setting that is none is refused: the prefix is reserved');
is($node->sql("SET snowflake.max_wait = '2s'; SHOW snowflake.max_wait"), '2s', 'any user may set max_wait for himself');

# --- at start ---

# Postgres itself would warn and take the default, which may be another's region: the server does not start.
my @at_start = (
	[ { etcd_endpoints => 'localhost:2379' }, 'etcd_endpoints' ],
	[ { region => 8 }, 'region' ],
	[ { region => -1 }, 'region' ],
	[ { region => 'west' }, 'region' ],
	[ { regoin => 3 }, 'regoin' ],
	[ { reserve => '60s' }, 'reserve' ],
	[ { reserve => '2min' }, 'reserve' ],
	[ { lease_ttl => '30s' }, 'lease_ttl' ],
	[ { lease_ttl => '10s', reserve => '10s' }, 'reserve' ],
	[ { lease_ttl => '0' }, 'lease_ttl' ],
	[ { reserve => '0' }, 'reserve' ],
	[ { etcd_cacert => '/nonexistent/ca.crt' }, 'etcd_cacert' ],
	[ { etcd_password_file => "$dir/unreadable" }, 'etcd_password_file' ],
	[ { etcd_prefix => 'idgen' }, 'etcd_prefix' ],
	[ { etcd_prefix => '' }, 'etcd_prefix' ],
	[ { etcd_prefix => '/idgen/' }, 'etcd_prefix' ],
);
$node->stop('fast');
for my $case (@at_start)
{
	my ($settings, $name) = @$case;
	my $what = join(', ', map { "$_ = '$settings->{$_}'" } sort keys %$settings);
	my $offset = $node->log_offset;
	my $conf = $node->data_dir . '/postgresql.conf';
	my $whole = slurp_file($conf);
	$node->append_conf('postgresql.conf', join('', map { "snowflake.$_ = '$settings->{$_}'\n" } sort keys %$settings));
	my $started = $node->start(fail_ok => 1);
	like($node->log_since($offset), qr/(?:LOG|WARNING|FATAL|DETAIL):.*"snowflake\.$name"/, "$what: the log names $name");
	unlike($node->log_since($offset), qr/PANIC|signal/, "$what: nothing crashed");
	is($started, 0, "$what: the server does not start");
	open my $file, '>', $conf;
	print $file $whole;
	close $file;
	$node->stop('immediate') if $started;
}

# --- what is odd but allowed ---

$node->append_conf('postgresql.conf', <<'EOS');
snowflake.holder = 'Zürich "7" \\ <&>	'''
snowflake.lease_ttl = '1h'
snowflake.reserve = '59min'
snowflake.etcd_prefix = '/a/b.c-d_e'
snowflake.region = 3
EOS
$node->start;
$row = $node->wait_issuing;
is($row->{region}, 3, 'a region');
my $claims = $etcd->under('/a/b.c-d_e/r3/workers/');
is_deeply([ map { $_->{value} } values %$claims ], [ "Z\xc3\xbcrich \"7\" \\ <&>\t'" ], 'an odd holder text and prefix arrive in etcd as they are');
cmp_ok($row->{reserve_left_s}, '>', 58 * 60, 'a long reserve is reserved');
is($node->timed_stop('fast') <= 2, 1, 'and the server stops quickly');

done_testing();
