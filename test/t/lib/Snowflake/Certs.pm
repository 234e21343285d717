# A certificate authority for one test, and certificates from it.

package Snowflake::Certs;

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Snowflake::Process qw(tempdir_abs);

sub new
{
	my ($class) = @_;
	my $self = bless { dir => tempdir_abs('certs'), serial => 1 }, $class;
	$self->_openssl(
		'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', 2, '-subj', '/O=Snowflake test/CN=test CA',
		'-keyout', $self->path('ca.key'), '-out', $self->path('ca.crt'));
	return $self;
}

sub path { my ($self, $name) = @_; return "$self->{dir}/$name"; }
sub ca { return $_[0]->path('ca.crt'); }
sub cert { my ($self, $name) = @_; return $self->path("$name.crt"); }
sub key { my ($self, $name) = @_; return $self->path("$name.key"); }

# usage: extendedKeyUsage; san: subjectAltName. A client certificate has no CN: with auth on, etcd's
# gateway refuses one that has.
sub issue
{
	my ($self, $name, %with) = @_;
	my $subject = defined $with{cn} ? "/O=Snowflake test/CN=$with{cn}" : '/O=Snowflake test';
	my $extensions = "extendedKeyUsage=$with{usage}\n";
	$extensions .= "subjectAltName=$with{san}\n" if $with{san};
	PostgreSQL::Test::Utils::append_to_file($self->path("$name.ext"), $extensions);
	$self->_openssl('req', '-new', '-newkey', 'rsa:2048', '-nodes', '-subj', $subject,
		'-keyout', $self->key($name), '-out', $self->path("$name.csr"));
	$self->_openssl(
		'x509', '-req', '-in', $self->path("$name.csr"), '-CA', $self->ca, '-CAkey', $self->path('ca.key'),
		'-set_serial', $self->{serial}++, '-days', $with{days} // 2, '-extfile', $self->path("$name.ext"),
		'-out', $self->cert($name));
	return;
}

sub _openssl
{
	my ($self, @arguments) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'openssl', @arguments ], '>', \$out, '2>', \$err)
	  or die "openssl $arguments[0]: $err";
	return;
}

1;
