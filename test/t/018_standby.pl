# A standby holds no worker number unless it may, and mints under one of its own.
use strict;
use warnings;
use Test::More;
use Snowflake::Etcd;
use Snowflake::Instance;

my $etcd = Snowflake::Etcd->new->start;
my $primary = Snowflake::Instance->create('primary', etcd => $etcd, init => { allows_streaming => 1 });
$primary->wait_issuing;
$primary->backup('base');

my $standby = Snowflake::Instance->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
ok($standby->wait_state('standby', 20), 'a standby says that it is one');
my ($out, $err) = $standby->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: this standby mints no IDs.*HINT:/s, 'and mints nothing');
is(scalar(() = $etcd->claimed), 1, 'it holds no worker number');

$standby->append_conf('postgresql.conf', 'snowflake.on_standby = on');
$standby->reload;
my $row = $standby->wait_issuing;
isnt($row->{worker}, $primary->stat('worker'), 'with on_standby it mints under a number of its own');

$standby->append_conf('postgresql.conf', 'snowflake.on_standby = off');
$standby->reload;
ok($standby->wait_state('standby', 20), 'without it again, it stops');
is(scalar(() = $etcd->claimed), 1, 'and gives the number back');

$standby->promote;
$row = $standby->wait_issuing;
isnt($row->{worker}, $primary->stat('worker'), 'promoted beside a living primary it takes another number');

done_testing;
